"""A short run of `benchmarks/fuzz.py`: other calls than any fixed list would have, but the same each time."""

from collections import Counter

import fuzz_brute_force
import fuzzing
import pytest
from fuzz_brute_force import SINGULAR
from fuzz_newton import BEYOND_DIGITS, BEYOND_RANGE, UNEVEN
from fuzzing import CALLS, run_many

from newton_losses import newton

UNCHECKED = (SINGULAR, BEYOND_DIGITS, BEYOND_RANGE, UNEVEN)


def test_fuzzed_calls_end_in_a_checked_result_or_an_error_with_words() -> None:
    ended, failures = run_many(seed=2024, first=0, count=800)
    assert not failures, "\n".join(["python benchmarks/fuzz.py repeats one with:", *failures])
    names = Counter(name for name, _ in ended.elements())
    assert set(names) == {call.__name__ for call in CALLS}
    # most calls get through to a result: the draws are not just nonsense, and few results cannot be compared
    assert sum(count for (_, how), count in ended.items() if how == "result") > 400
    assert sum(count for (_, how), count in ended.items() if how in UNCHECKED) < 40


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_the_comparison_with_brute_force_sees_a_step_that_is_a_thousandth_too_long(monkeypatch, factor) -> None:
    """Its bounds follow the rounding of each loss and system; they must not have grown until everything is inside."""
    solve, on_host = newton.solve_step, newton.host_step
    monkeypatch.setattr(newton, "solve_step", lambda *given, **named: longer(solve(*given, **named), factor))
    monkeypatch.setattr(newton, "host_step", lambda *given, **named: longer(on_host(*given, **named), factor))
    monkeypatch.setattr(fuzzing, "CALLS", fuzz_brute_force.CALLS)
    _, failures = run_many(seed=5, first=0, count=40)
    assert len(failures) > 15 if factor > 1 else not failures


def longer(solved, factor):
    return None if solved is None else solved._replace(rows=solved.rows * factor)
