"""Writes docs/evidence.md from what is in results/: `python docs/evidence.py`. No number is typed by hand."""

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INTRODUCTION = """# Evidence

Measured with this library; every table names the command that printed it. Made from the files in
`results/` by `python docs/evidence.py`.
"""


def convex_layers(path: Path) -> str:
    found = json.loads(path.read_text())
    facts, runs = found["facts"], found["runs"]
    steps = len(runs[0]["baseline"]) - 1
    marks = [steps * k // 5 for k in range(6)]
    rows = [
        f"| {run['seed']} | {name} | " + " | ".join(f"{run[key][step]:.3f}" for step in marks) + " |"
        for run in runs
        for name, key in (("baseline", "baseline"), ("Fisher", "fisher"))
    ]
    lines = [
        "## Convex layers",
        "",
        "The paper's extension: two ReLU layers as convex problems and a linear layer, fitted to random numbers; "
        "300 samples, full batch, Adam at 1e-2, mean squared error, λ = 0.1 ([convex layers](convex.md)). Training "
        "loss after so many steps:",
        "",
        "| seed | | " + " | ".join(map(str, marks)) + " |",
        "|---|---|" + "---|" * len(marks),
        *rows,
        "",
        f"After {steps} steps {_comparison(runs)}",
        "",
        f"    {facts['command']}",
        "",
        "Python {python}, torch {torch}, cvxpy {cvxpy}, cvxpylayers {cvxpylayers}, on a CPU.".format(**facts),
        "",
    ]
    return "\n".join(lines)


def exact_layers(path: Path) -> str:
    """The same problem with its known solution in place of the solver, for more seeds than a solver has time for."""
    found = json.loads(path.read_text())
    return "\n".join(
        [
            "Five seeds are few, and the solver is inexact. With the known solution max(Wx + b, 0) in its place, and "
            f"so without its errors, {_comparison(found['runs'])}",
            "",
            f"    {found['facts']['command']}",
            "",
        ]
    )


def _comparison(runs: list[dict[str, Any]]) -> str:
    better = sum(run["fisher"][-1] < run["baseline"][-1] for run in runs)
    middle = {key: statistics.median(run[key][-1] for run in runs) for key in ("baseline", "fisher")}
    return (
        f"Fisher is below the baseline on {better} of {len(runs)} seeds; the median loss is {middle['fisher']:.3f} "
        f"with Fisher and {middle['baseline']:.3f} without."
    )


FILES = {"relu.json": convex_layers, "relu-exact.json": exact_layers}


def page() -> str:
    folder = ROOT / "results" / "cvxpy"
    return "\n".join([INTRODUCTION, *(write(folder / n) for n, write in FILES.items() if (folder / n).is_file())])


if __name__ == "__main__":
    (ROOT / "docs" / "evidence.md").write_text(page())
