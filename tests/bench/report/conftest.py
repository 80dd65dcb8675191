"""What the tests of the report share: a folder of made-up runs and the report about it, made once."""

import pytest
from run_folders import write_many

from newton_losses.bench.report import write_report


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """A folder of made-up results."""
    results = tmp_path_factory.mktemp("results")
    write_many(results)
    return results


@pytest.fixture(scope="session")
def site(made_up, tmp_path_factory):
    """The folder of the report about them."""
    out = tmp_path_factory.mktemp("site")
    write_report(made_up, out)
    return out
