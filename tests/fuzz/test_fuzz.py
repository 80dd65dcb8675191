"""A short run of `benchmarks/fuzz.py`: other calls than any fixed list would have, but the same each time."""

from collections import Counter

from fuzzing import CALLS, run_many


def test_fuzzed_calls_end_in_a_checked_result_or_an_error_with_words() -> None:
    ended, failures = run_many(seed=2024, first=0, count=800)
    assert not failures, "\n".join(["python benchmarks/fuzz.py repeats one with:", *failures])
    names = Counter(name for name, _ in ended.elements())
    assert set(names) == {call.__name__ for call in CALLS}
    # most calls get through to a result: the draws are not just nonsense
    assert sum(count for (_, how), count in ended.items() if how == "result") > 400
