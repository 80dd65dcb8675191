"""A person who presses Ctrl-C is answered at once: saving comes after the step or evaluation that is under way."""

import contextlib
import os
import select
import signal
import sys

import pytest

from newton_losses_bench.machine import STOPPING, stop_requests


@contextlib.contextmanager
def standard_error(make, monkeypatch):
    """The other end of a terminal or a pipe, with the standard error at this one."""
    ours, theirs = make()
    with open(theirs, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield ours
    os.close(ours)


def said(end: int) -> str:
    """What has arrived; a terminal takes a moment."""
    ready, _, _ = select.select([end], [], [], 0.2)
    return os.read(end, 1000).decode() if ready else ""


def test_a_person_is_answered(monkeypatch):
    with standard_error(os.openpty, monkeypatch) as terminal, stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested == signal.SIGINT
        assert STOPPING in said(terminal)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert said(terminal) == ""


def test_a_signal_in_a_run_reaches_the_command_around_it():
    with stop_requests(answers=False) as command:
        with stop_requests(answers=False) as run:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (run.requested, command.requested) == (signal.SIGTERM, None)
        assert command.requested == signal.SIGTERM
    with stop_requests(answers=False) as command:
        with stop_requests(answers=False):
            pass
        assert command.requested is None


def test_a_terminal_that_is_gone_does_not_matter(monkeypatch):
    def write(*_):
        raise OSError("Input/output error")

    with standard_error(os.openpty, monkeypatch), stop_requests() as stop:
        monkeypatch.setattr(os, "write", write)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested == signal.SIGINT


def test_a_log_is_left_alone(monkeypatch):
    with standard_error(os.pipe, monkeypatch) as log, stop_requests():
        os.kill(os.getpid(), signal.SIGINT)
        assert said(log) == ""


def test_who_answers_otherwise_does_it_alone(monkeypatch):
    with standard_error(os.openpty, monkeypatch) as terminal, stop_requests(answers=False):
        os.kill(os.getpid(), signal.SIGINT)
        assert said(terminal) == ""
