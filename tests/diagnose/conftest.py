"""Fixtures for the tests of `diagnose`."""

import itertools
import time

import pytest


@pytest.fixture
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes a microsecond, so that every budget is enough for all samples, here and on a busy machine."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "process_time", lambda: 1e-6 * next(ticks))
