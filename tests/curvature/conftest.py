"""What several tests of the curvature share."""

from functools import cache, partial

import pytest
from block_kernel import Emulated


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    return cache(partial(Emulated, tmp_path_factory.mktemp("emulated")))
