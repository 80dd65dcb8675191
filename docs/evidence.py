"""Writes docs/evidence.md from what is in results/: `python docs/evidence.py`. No number is typed by hand."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from newton_losses.bench.results import RunRecord, Store, summarise

ROOT = Path(__file__).parent.parent
INTRODUCTION = """# Evidence

Measured with this library; every table names the command that printed it. Made from the files in
`results/` by `python docs/evidence.py`.

All runs in `results/` beside the paper's figures, with learning curves, times, gradients and a verdict for each
claim of the paper, are on one page that this makes:

    newton-losses report --results results --out site

The page, `site/index.html`, needs no network; `site/report.md` is the same as Markdown. Cells that were not run say so.
"""


SORTING_ARMS = {
    "plain": ("reference", "none", None),
    "Fisher": ("reference", "fisher", None),
    "Hessian": ("reference", "hessian", None),
    "clipped": ("reference", "none", 1.0),
    "energy": ("reference", "energy", None),
    "plain, stable": ("stable", "none", None),
    "Fisher, stable": ("stable", "fisher", None),
    "Hessian, stable": ("stable", "hessian", None),
}
SORTING_LOSSES = {
    "neuralsort": "NeuralSort",
    "softsort": "SoftSort",
    "logistic": "logistic network",
    "cauchy": "Cauchy network",
}
PATH_LOSSES = {
    "bellman-ford": "relaxed Bellman-Ford",
    "smoothed-loss": "smoothing of the loss",
    "smoothed-algorithm": "smoothing of the algorithm",
    "fenchel-young": "Fenchel-Young",
}


def sorting(records: list[RunRecord]) -> str:
    """Table 1 at 10,000 steps: all arms of a loss in a row."""
    runs = [
        r
        for r in records
        if r.task == "sorting" and r.steps == 10_000 and isinstance(r.configuration["damping"], float | None)
    ]
    lines = [
        "## Ranking supervision, 10,000 steps",
        "",
        "Four-digit MNIST, sets of 5, the paper's λ; sets ordered right in per cent, mean ± standard deviation, in "
        "brackets the number of seeds. *Stable* is the loss in log space, the others are cross-entropies on float32 "
        "probabilities as in the paper. *Clipped* and *energy* know nothing of curvature: the gradient's norm clipped "
        "at 1, and the gradient divided by its mean square over the batch plus λ.",
        "",
        "| | " + " | ".join(SORTING_ARMS) + " |",
        "|---|" + "---|" * len(SORTING_ARMS),
    ]
    for algorithm, name in SORTING_LOSSES.items():
        cells = []
        for numerics, curvature, clip in SORTING_ARMS.values():
            wanted = {"algorithm": algorithm, "numerics": numerics, "curvature": curvature, "clip_norm": clip, "n": 5}
            cells.append(_cell(runs, wanted, "exact_match"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    command = "newton-losses reproduce table1 --only n5 --steps 10000 --seeds 3 --precision bf16 --device cuda"
    return "\n".join([*lines, "", f"    {command}", ""])


def paths(records: list[RunRecord]) -> str:
    """Tables 2 and 3 on terrain."""
    runs = [r for r in records if r.task == "paths" and r.configuration["precision"] == "bf16" and r.steps == 7150]
    lines = [
        "## Shortest-path supervision, on look-alike maps",
        "",
        "Terrain, 12×12, 50 epochs, the paper's λ; maps with exactly the best path in per cent, as above. These maps "
        "are not the paper's: compare the arms, not the levels.",
        "",
        "| | samples | plain | Fisher | Hessian |",
        "|---|---|---|---|---|",
    ]
    settings = sorted({_setting(run) for run in runs}, key=lambda s: (list(PATH_LOSSES).index(s[0]), s[1:]))
    for setting in settings:
        algorithm, loop, norm, samples = setting
        name = ", ".join(filter(None, (PATH_LOSSES[algorithm], loop, norm)))
        same = [run for run in runs if _setting(run) == setting]
        cells = [_cell(same, {"curvature": arm}, "perfect_match") for arm in ("none", "fisher", "hessian")]
        lines.append(f"| {name} | {samples or ''} | " + " | ".join(cells) + " |")
    commands = [
        f"    newton-losses reproduce {table} --seeds 3 --precision bf16 --device cuda"
        for table in ("table2", "table3")
    ]
    return "\n".join([*lines, "", *commands, ""])


def _setting(run: RunRecord) -> tuple[str, str, str, int]:
    settings = run.configuration
    return run.algorithm, settings["loop"] or "", settings["norm"] or "", settings["num_samples"] or 0


def _cell(runs: Iterable[RunRecord], wanted: dict[str, Any], figure: str) -> str:
    values = [r.test[figure] for r in runs if all(r.configuration[name] == value for name, value in wanted.items())]
    return f"{summarise(values)} ({len(values)})" if values else ""


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
    records = Store(ROOT / "results").records()
    sections = [
        INTRODUCTION,
        sorting(records),
        paths(records),
        convex_layers(folder / "relu.json"),
        exact_layers(sorted(folder.glob("relu-*.json"))),
    ]
    return "\n".join(sections)


if __name__ == "__main__":
    (ROOT / "docs" / "evidence.md").write_text(page())
