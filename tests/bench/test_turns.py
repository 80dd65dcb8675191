"""Whose turn it is, and what becomes of the others when one fails."""

import contextlib
import signal

import pytest
import torch

from newton_losses_bench import turns
from newton_losses_bench.signals import Interrupted, StopRequests, others_of
from newton_losses_bench.turns import WHEN_DONE, WHEN_NEARLY_DONE, take_turns


class Journal:
    """Runs that write down what happens to them, and stop when they are asked to."""

    def __init__(self):
        self.stop = StopRequests()
        self.told = []

    def run(self, name, length, *, fail_at=None, error=ValueError, stop_at=None):
        if self.stop.requested:
            raise Interrupted(0, self.stop.requested)
        self.told.append(f"{name} begins")
        try:
            for step in range(length):
                yield WHEN_DONE
                if step == stop_at:
                    self.stop.requested = signal.SIGINT
                if step == fail_at:
                    raise error(name)
                self.told.append(f"{name}{step}")
                if self.stop.requested:
                    self.told.append(f"{name} saves")
                    raise Interrupted(step, self.stop.requested)
            return name.upper()
        finally:
            self.told.append(f"{name} ends")

    def take(self, *runs, at_once=2):
        return take_turns(runs, at_once, "cpu", self.stop)


def test_everyone_has_a_turn_and_the_next_one_begins_when_one_ends():
    journal = Journal()
    results = journal.take(journal.run("a", 1), journal.run("b", 3), journal.run("c", 1))
    assert results == ["A", "B", "C"]
    assert " ".join(journal.told) == "a begins b begins a0 a ends b0 c begins b1 c0 c ends b2 b ends"


def test_one_at_once_is_one_after_another():
    journal = Journal()
    assert journal.take(journal.run("a", 2), journal.run("b", 1), at_once=1) == ["A", "B"]
    assert " ".join(journal.told) == "a begins a0 a1 a ends b begins b0 b ends"


def test_when_one_fails_those_under_way_save_and_no_other_begins():
    journal = Journal()

    def never():
        journal.told.append("never")
        yield WHEN_DONE

    with pytest.raises(ValueError, match="a") as caught:
        journal.take(journal.run("a", 3, fail_at=1), journal.run("b", 9), never())
    assert [other.step for other in others_of(caught.value)] == [1]
    assert " ".join(journal.told) == "a begins b begins a0 b0 a ends b1 b saves b ends"


def test_one_that_is_only_ready_has_nothing_to_save():
    journal = Journal()
    with pytest.raises(ValueError, match="a"):
        journal.take(journal.run("a", 3, fail_at=0), journal.run("b", 9))
    assert " ".join(journal.told) == "a begins b begins a ends b ends"


def test_the_first_error_is_raised_and_tells_of_the_others():
    journal = Journal()
    with pytest.raises(ValueError, match="a") as caught:
        journal.take(journal.run("a", 3, fail_at=1), journal.run("b", 3, fail_at=1, error=KeyError))
    assert caught.value.__notes__ == ["Then another run failed as well: 'b'"]


def test_an_interruption_of_several_is_one():
    journal = Journal()
    with pytest.raises(Interrupted) as caught:
        journal.take(journal.run("a", 9, stop_at=2), journal.run("b", 9), journal.run("c", 9))
    assert journal.told[-4:] == ["a ends", "b2", "b saves", "b ends"]
    assert (caught.value.step, caught.value.exit_code) == (2, 130)


def test_a_stop_between_two_runs_begins_no_other():
    journal = Journal()

    def last_wish():
        yield WHEN_DONE
        journal.stop.requested = signal.SIGTERM
        return "A"

    with pytest.raises(Interrupted) as caught:
        journal.take(last_wish(), journal.run("b", 1), journal.run("c", 1), at_once=1)
    assert journal.told == []
    assert (caught.value.step, caught.value.exit_code) == (0, 143)


def test_the_step_of_an_interruption_is_of_a_run_that_has_begun():
    """On CUDA one may be about to begin while others wait for the device: all are interrupted, it at step 0."""
    every = turns._Turns([], [], StopRequests())
    every._failures = [Interrupted(step, signal.SIGINT) for step in (0, 7, 5)]
    with pytest.raises(Interrupted) as caught:
        every.raise_failure()
    assert caught.value.step == 5
    assert [other.step for other in others_of(caught.value)] == [7, 0]


def test_a_second_signal_ends_everyone_at_once():
    journal = Journal()
    with pytest.raises(KeyboardInterrupt) as caught:
        journal.take(journal.run("a", 9, fail_at=1, error=KeyboardInterrupt), journal.run("b", 9))
    assert caught.tb  # which still refers to the runs: they have been closed, and not just forgotten
    assert " ".join(journal.told) == "a begins b begins a0 b0 a ends b ends"


class Device:
    """In the place of `torch.cuda.Event`: turns are done when the test says so."""

    begun = done = 0

    def __call__(self):
        self.begun += 1
        return Mark(self, self.begun)


class Mark:
    def __init__(self, device, number):
        self.device, self.number = device, number

    def record(self):
        pass

    def query(self):
        return self.number <= self.device.done


def test_a_run_goes_on_when_the_device_has_little_left_of_it(monkeypatch):
    """Before it waits: when nothing is left. After some steps: while one turn is still under way."""
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device)
    lane = turns._Lane("a stream")
    monkeypatch.setattr(lane, "_on_stream", contextlib.nullcontext)
    lane.take(0, iter([WHEN_NEARLY_DONE, WHEN_NEARLY_DONE, WHEN_DONE]))
    lane.go_on()
    assert lane.is_ready()  # one turn is under way
    lane.go_on()
    assert not lane.is_ready()  # two are
    device.done = 1
    assert lane.is_ready()
    lane.go_on()
    for device.done in (1, 2):
        assert not lane.is_ready()
    device.done = 3
    assert lane.is_ready()
