"""Can the learning curves of two ways to compute the same training be told apart?

    python benchmarks/curves.py --arm kernels RUN RUN RUN --arm library RUN RUN RUN [--keep FILE]
    python benchmarks/curves.py --read FILE

An arm is a name and the run folders of its seeds, also of runs that were stopped. At every step that all runs have
evaluated, the mean ± standard deviation of the test figure over the seeds is printed; below, each other arm's
difference to the first. There a run counts once, with its mean over the evaluations of the second half (they are not
independent of each other), and Welch's t-test, two-sided, says how probable so large a difference is by chance.
`--keep` writes the curves into one file, from which `--read` prints the same.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from newton_losses_bench.statistics import Summary, p_value, summarise

Curve = dict[int, float]
Arms = dict[str, list[Curve]]


def read_curve(folder: Path, figure: str) -> Curve:
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {record["step"]: record["test"][figure] for record in records}


def read_runs(arms: list[list[str]], figure: str) -> Arms:
    return {name: [read_curve(Path(run), figure) for run in runs] for name, *runs in arms}


def read_kept(file: Path) -> Arms:
    kept: dict[str, list[dict[str, float]]] = json.loads(file.read_text())
    return {name: [{int(step): v for step, v in curve.items()} for curve in curves] for name, curves in kept.items()}


def shared_steps(arms: Arms) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curves in arms.values() for curve in curves)))


def tell(arms: Arms) -> None:
    """Print the curves and the differences to the first arm."""
    steps = shared_steps(arms)
    print(f"{'step':>8}  " + "  ".join(f"{name:>16}" for name in arms))
    for step in steps:
        summaries = (summarise(curve[step] for curve in curves) for curves in arms.values())
        print(f"{step:>8}  " + "  ".join(f"{summary!s:>16}" for summary in summaries))
    first, *others = arms
    for name in others:
        # Each pair over the steps that the two share, however short a third arm is.
        late = shared_steps({first: arms[first], name: arms[name]})
        late = late[len(late) // 2 :]
        one, other = (level(arms[arm], late) for arm in (first, name))
        chance = min(1.0, 2 * min(p_value(one, other), p_value(other, one)))
        print(
            f"{name} − {first}, steps {late[0]} to {late[-1]}: {other.mean - one.mean:+.2f} "
            f"({one} over {one.count} seeds, {other} over {other.count}; p = {chance:.2f})"
        )


def level(curves: list[Curve], steps: list[int]) -> Summary:
    return summarise(statistics.fmean(curve[step] for step in steps) for curve in curves)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--arm", nargs="+", action="append", metavar=("NAME", "RUN"), default=[])
    parser.add_argument("--figure", default="exact_match")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--read", type=Path)
    options = parser.parse_args()
    try:
        arms = read_kept(options.read) if options.read else read_runs(options.arm, options.figure)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"these are no learning curves: {error}")
    if len(arms) < 2:
        parser.error("give at least two arms, or a file with --read")
    if options.keep:
        options.keep.write_text(json.dumps(arms) + "\n")
    tell(arms)


if __name__ == "__main__":
    main()
