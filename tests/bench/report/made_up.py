"""A folder of made-up results and the report about it, made once for all tests of a process."""

from pathlib import Path

from run_folders import write_many

from newton_losses_bench.report import write_report

_made: list[tuple[Path, Path]] = []


def results_and_site(tmp_path_factory) -> tuple[Path, Path]:
    """The folder of run folders, and the folder of the report."""
    if not _made:
        results, site = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("site")
        write_many(results)
        write_report(results, site)
        _made.append((results, site))
    return _made[0]
