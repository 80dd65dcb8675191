"""Fuzz the public API: random shapes, dtypes, layouts, magnitudes and nonsense, each result checked.

    python benchmarks/fuzz.py --seed 0 --count 200000 --processes 2
    python benchmarks/fuzz.py --seed 0 --count 200000 --seconds 600    # as many of them as ten minutes allow
    python benchmarks/fuzz.py --seed 0 --first 56000 --count 144000    # from there on
    python benchmarks/fuzz.py --seed 0 --only 4711      # one call again, with its traceback

What is called and how it is checked is in `tests/fuzz`. A call has to give a result that satisfies its
definition, or one of the library's own errors with words; anything else is printed, and the exit status is 1.
"""

import argparse
import contextlib
import multiprocessing
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

from fuzzing import run, run_many

CHUNK = 500


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _chunk(arguments: tuple[int, int, int]) -> tuple[Counter[tuple[str, str]], list[str]]:
    torch.set_num_threads(1)
    return run_many(*arguments)


def main(seed: int, start_at: int, count: int, processes: int, limit: float) -> int:
    end = start_at + count
    chunks = [(seed, first, min(CHUNK, end - first)) for first in range(start_at, end, CHUNK)]
    ended: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    # Ctrl-C ends it as the limit does: what was found is printed.
    with contextlib.suppress(KeyboardInterrupt), context.Pool(processes, _leave_ctrl_c_to_the_parent) as pool:
        for some, failed in pool.imap_unordered(_chunk, chunks):
            ended += some
            failures += failed
            for line in failed:
                print(line, flush=True)
            print(f"{ended.total() + len(failures)} of {count} calls", end="\r", file=sys.stderr)
            if time.perf_counter() - start > limit:
                break
    print(file=sys.stderr)
    done, seconds = ended.total() + len(failures), time.perf_counter() - start
    for name in sorted({name for name, _ in ended}):
        ways = ", ".join(f"{how} {ended[name, how]}" for _, how in sorted(key for key in ended if key[0] == name))
        print(f"  {name:24s} {ways}")
    print(f"{done} calls in {seconds:.0f} s ({done / seconds:.0f} a second), {len(failures)} failed")
    return int(bool(failures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    if given.only is not None:
        print(*run(given.seed, given.only))
    else:
        sys.exit(main(given.seed, given.first, given.count, given.processes, given.seconds))
