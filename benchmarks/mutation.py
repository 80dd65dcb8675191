"""Test the tests: change a module in one place at a time, and list the changes that no test notices.

    python benchmarks/mutation.py src/newton_losses/inject.py --tests tests/test_inject.py
    python benchmarks/mutation.py --sample 300                   # of all of CORE
    python benchmarks/mutation.py --results mutants.jsonl --record tests.jsonl      # all; stop and resume as you like
    python benchmarks/mutation.py --results mutants.jsonl --summary                 # what is known so far, per module
    python benchmarks/mutation.py --results fresh.jsonl --without mutants.jsonl     # those that no test was written for

A mutant is the module with one operator, number, condition or call changed (`mutants.py` has the list). The tests run
once without a mutant, to record which lines of the modules each of them runs and how long it takes (`--record` keeps
that). Then each mutant gets the tests that run its line, quick ones and those that caught others first, up to the
first failure; a test that takes a minute and ten times as long as before fails. A test that catches one has to pass
alone without it. The modules are imported once: a fork gives the mutant's code to the functions that are there.
Mutants of code that runs at import only, and of lines that only subprocesses reach, are tested in a copy of the
repository instead, which takes seconds each. Needs a POSIX system.

Not every survivor is a gap: those in `mutation_notes.md` change no behaviour that a test can see, and count as
equivalent. Exit status 1 if any other survives.
"""

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from mutants import ROOT, Mutant, mutants_of
from mutation_session import Record, Session, known, run_pytest, test_in_copies

LIBRARY = ROOT / "src" / "newton_losses"
NOTES = ROOT / "benchmarks" / "mutation_notes.md"
CORE = [
    "newton.py", "inject.py", "functional.py", "_skipped.py", "curvature/_*.py",
    *(f"sorting/_{name}.py" for name in (
        "softsort", "neuralsort", "network_derivatives", "laplace", "laplace_curvature", "row_chunks",
        "exponential_sums", "partial_orders", "graded", "log_space",
    )),
    *(f"smoothing/_{name}.py" for name in ("smoothed", "black_box", "draws", "distributions")),
]  # fmt: skip
# The tests of the library; those of the laboratory, the site and the wheel would add little but their time.
TESTS = [
    "src/newton_losses", "tests/curvature", "tests/sorting", "tests/smoothing", "tests/diagnose", "tests/fuzz",
    "tests/paths", "tests/distributed", "tests/test_newton.py", "tests/test_inject.py", "tests/test_skipped.py",
    "tests/test_learning_losses.py",
    "tests/test_targets.py", "tests/test_arguments.py", "tests/test_bad_input.py", "tests/test_careful_users.py",
    "tests/test_perturbed.py", "tests/test_convex.py", "tests/test_backends.py", "tests/test_random.py",
]  # fmt: skip


def equivalent() -> set[str]:
    """The mutants that the notes list, one in each line that begins with a dash."""
    rows = NOTES.read_text(encoding="utf-8").splitlines()
    return {row.removeprefix("- `").removesuffix("`") for row in rows if row.startswith("- `")}


def in_random_order(modules: list[str], seed: int, left_out: set[str]) -> list[Mutant]:
    """All mutants, so that the first of them are a random sample in proportion to the modules' numbers of mutants."""
    places = []
    for module in modules:
        found = [mutant for mutant in mutants_of(module) if mutant.name not in left_out]
        random.Random(f"{seed} {module}").shuffle(found)
        places += [((place + 0.5) / len(found), mutant) for place, mutant in enumerate(found)]
    return [mutant for _, mutant in sorted(places, key=lambda one: (one[0], one[1].module))]


def summary(chosen: list[Mutant], options: argparse.Namespace) -> int:
    """Print the figures of each module and of all; the number of survivors that the notes do not explain."""
    results, explained = known(options), equivalent()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for mutant in chosen:
        row, module = results.get(mutant.name, {}), mutant.name.split(":")[0]
        result = row.get("result", "later")
        if result == "later":
            continue
        if result == "survived":
            result = "equivalent" if mutant.name in explained else "survived"
        if result == "survived":
            survivors.append(mutant)
        for name in (module, "all"):
            rows[name].update({"tested": 1, result: 1})
    print(f"{'':32}{'mutants':>10}{'tested':>10}{'caught':>10}{'equivalent':>12}{'survived':>10}{'caught':>10}")
    for name, row in [*((name, row) for name, row in rows.items() if name != "all"), ("all", rows["all"])]:
        total = len(chosen) if name == "all" else sum(mutant.name.split(":")[0] == name for mutant in chosen)
        matter = row["caught"] + row["survived"]
        print(f"{name:32}{total:10}{row['tested']:10}{row['caught']:10}{row['equivalent']:12}{row['survived']:10}"
              f"{100 * row['caught'] / max(matter, 1):9.1f}%")  # fmt: skip
    whole, counts = rows["all"], Counter(mutant.name.split(":")[0] for mutant in chosen)
    low, high = interval(whole["caught"], whole["caught"] + whole["survived"])
    print(f"95 % interval of the share caught, if these are a random sample: {100 * low:.1f} to {100 * high:.1f} %")
    by_module = [(counts[name] / row["tested"], row) for name, row in rows.items() if name != "all"]
    caught, survived = (sum(weight * row[what] for weight, row in by_module) for what in ("caught", "survived"))
    print(f"with each module weighted by its number of mutants: {100 * caught / max(caught + survived, 1):.1f} %")
    for mutant in survivors:
        print(f"  {mutant.line}: {mutant.name}")
    return len(survivors)


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return middle - half, middle + half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", type=Path, nargs="*", help="by default those of CORE, without kernels")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or folders")
    parser.add_argument("--lines", default="1-1000000", help="only mutants of these lines, as 20-80")
    parser.add_argument("--sample", type=int, help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", type=Path, help="only mutants that this other file of results does not have")
    parser.add_argument("--survivors", action="store_true", help="only those that survived in the file of results")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--summary", action="store_true", help="print what the file of results has and run nothing")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no mutant after so many")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of tests for each mutant")
    parser.add_argument("--results", type=Path, help="file that keeps the results")
    parser.add_argument("--record", type=Path, help="file that keeps which tests run which lines")
    options = parser.parse_args()
    options.end = time.monotonic() + options.seconds
    named = options.modules or [file for pattern in CORE for file in sorted(LIBRARY.glob(pattern))]
    options.modules = [
        str(file.resolve().relative_to(ROOT)) for file in named if options.modules or "_triton" not in file.name
    ]
    first, last = map(int, options.lines.split("-"))
    rows = map(json.loads, options.without.read_text(encoding="utf-8").splitlines()) if options.without else []
    left_out = {row["name"] for row in rows if row["result"] != "later"}
    chosen = [one for one in in_random_order(options.modules, options.seed, left_out) if first <= one.line <= last]
    chosen = chosen[: options.sample]
    if options.list:
        for mutant in sorted(chosen, key=lambda one: (one.module, one.number)):
            print(f"{mutant.line}: {mutant.name}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        options.results = (options.results or Path(scratch) / "results").resolve()
        options.record = (options.record or Path(scratch) / "record").resolve()
        options.collected = Path(scratch) / "collected"
        if not options.summary:
            test_all(chosen, options)
        sys.exit(bool(summary(chosen, options)))


def test_all(chosen: list[Mutant], options: argparse.Namespace) -> None:
    import numpy  # noqa: F401  (these are slow to import, and shared by all forks)
    import pytest  # noqa: F401
    import torch
    import torch._dynamo  # noqa: F401

    done, explained = known(options), equivalent()

    def unfinished(mutant: Mutant) -> bool:
        row = done.get(mutant.name, {"result": ""})
        if row["result"] == "survived":
            return mutant.name not in explained and (options.survivors or not row["all_tests"])
        return row["result"] != "caught" and not options.survivors

    record = Record(options.record)
    record.caught.update((mutant.module, done[mutant.name].get("by", "")) for mutant in chosen if mutant.name in done)
    chosen = list(filter(unfinished, chosen))
    todo = [mutant for mutant in chosen if done.get(mutant.name, {}).get("result") != "later"]
    record = Record(options.record)
    record.caught.update(
        ("src/newton_losses/" + name.split(":")[0], row["by"]) for name, row in done.items() if "by" in row
    )
    if not (child := os.fork()):
        plugin = Session(todo, record, options, os.dup(1))
        os._exit(run_pytest(ROOT, options.tests, plugin))
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"mutation: pytest ended with status {status}. Do the tests pass without a mutant?")
    record, done = Record(options.record), known(options)
    record.only(set(json.loads(options.collected.read_text(encoding="utf-8"))))
    test_in_copies([mutant for mutant in chosen if done.get(mutant.name, {}).get("result") == "later"], record, options)


if __name__ == "__main__":
    main()
