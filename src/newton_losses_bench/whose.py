"""Whose error it is, where one process has several runs: an error is raised by a run and told by the command."""

import contextlib
from collections.abc import Iterator

_NAME = "seed_of_run"


@contextlib.contextmanager
def errors_of(seed: int) -> Iterator[None]:
    """Let whatever is raised in here know that it is of the run with this seed.

    >>> try:
    ...     with errors_of(3):
    ...         raise ValueError
    ... except ValueError as error:
    ...     seed_of(error)
    3
    """
    try:
        yield
    except BaseException as error:
        name_seed(error, seed)
        raise


def name_seed(error: BaseException, seed: int) -> None:
    """Let an error know that it is of the run with this seed."""
    setattr(error, _NAME, seed)


def seed_of(error: BaseException) -> int | None:
    """The seed of the run that raised an error, or `None` where it is not of one run."""
    found: int | None = getattr(error, _NAME, None)
    return found
