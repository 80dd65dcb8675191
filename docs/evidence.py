"""Writes docs/evidence.md from what is in results/: `python docs/evidence.py`. No number is typed by hand."""

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INTRODUCTION = """# Evidence

Measured with this library; every table names the command that printed it. Made from the files in
`results/` by `python docs/evidence.py`.

All runs in `results/` beside the paper's figures, with learning curves, times, gradients and a verdict for each
claim of the paper, are on one page that this makes:

    newton-losses report --results results --out site

The page, `site/index.html`, needs no network; `site/report.md` is the same as Markdown. Cells that were not run say so.
"""


def convex_layers(path: Path) -> str:
    found = json.loads(path.read_text())
    facts, runs = found["facts"], found["runs"]
    steps = len(runs[0]["baseline"]) - 1
    better, count, middle = _comparison(runs)
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
        f"After {steps} steps Fisher is below the baseline on {better} of {count} seeds; the median loss is "
        f"{middle['fisher']:.3f} with Fisher and {middle['baseline']:.3f} without.",
        "",
        f"    {facts['command']}",
        "",
        "Python {python}, torch {torch}, cvxpy {cvxpy}, cvxpylayers {cvxpylayers}, on a CPU.".format(**facts),
        "",
    ]
    return "\n".join(lines)


def exact_layers(paths: list[Path]) -> str:
    """The same with the known solution in place of the solver, for more seeds and in other settings."""
    lines = [
        "Five seeds of one setting are few, and the solver is inexact. With the known solution max(Wx + b, 0) in its "
        "place, and so without its errors:",
        "",
        "| `python examples/convex_layers.py …` | Fisher below the baseline | median, Fisher | median, baseline |",
        "|---|---|---|---|",
    ]
    for path in paths:
        found = json.loads(path.read_text())
        better, count, middle = _comparison(found["runs"])
        options = found["facts"]["command"].split("convex_layers.py ")[1].split(" --out")[0]
        lines.append(f"| `{options}` | {better} of {count} | {middle['fisher']:.3f} | {middle['baseline']:.3f} |")
    return "\n".join([*lines, ""])


def _comparison(runs: list[dict[str, Any]]) -> tuple[int, int, dict[str, float]]:
    better = sum(run["fisher"][-1] < run["baseline"][-1] for run in runs)
    return better, len(runs), {key: statistics.median(run[key][-1] for run in runs) for key in ("baseline", "fisher")}


def page() -> str:
    folder = ROOT / "results" / "cvxpy"
    return "\n".join(
        [INTRODUCTION, convex_layers(folder / "relu.json"), exact_layers(sorted(folder.glob("relu-*.json")))]
    )


if __name__ == "__main__":
    (ROOT / "docs" / "evidence.md").write_text(page())
