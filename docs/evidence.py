"""Writes docs/evidence.md from what is in results/: `python docs/evidence.py`. No number is typed by hand."""

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from newton_losses.bench.presets import Cell, Group, cells, group
from newton_losses.bench.results import RunRecord, Store, Summary, p_value

ROOT = Path(__file__).parent.parent
INTRODUCTION = """# Evidence

Measured with this library; every table names the command that printed it. Made from the files in
`results/` by `python docs/evidence.py`.

All runs in `results/` beside the paper's figures, with learning curves, times, gradients and a verdict for each
claim of the paper, are on one page that this makes:

    newton-losses report --results results --out site

The page, `site/index.html`, needs no network; `site/report.md` is the same as Markdown. Cells that were not run say so.
"""


LOSSES = {
    "neuralsort": "NeuralSort",
    "softsort": "SoftSort",
    "logistic": "logistic network",
    "cauchy": "Cauchy network",
    "bellman-ford": "relaxed Bellman-Ford",
    "smoothed-loss": "smoothing of the loss",
    "smoothed-algorithm": "smoothing of the algorithm",
    "fenchel-young": "Fenchel-Young",
}
ARMS = {"baseline": "plain", "fisher": "Fisher", "hessian": "Hessian"}
SORTING_ARMS = {
    "plain": "baseline",
    "Fisher": "fisher",
    "Hessian": "hessian",
    "clipped": "clip",
    "energy": "energy",
    "plain, stable": "baseline-stable",
    "Fisher, stable": "fisher-stable",
    "Hessian, stable": "hessian-stable",
}
METRICS = {"sorting": "exact_match", "paths": "perfect_match"}
LENGTHS = {"sorting": 10_000, "paths": 50}
Found = dict[str, Group]


def found(wanted: Iterable[Cell], records: Iterable[RunRecord]) -> Found:
    """The runs of each cell that has some, by its key: on a GPU in bf16, 10,000 steps or 50 epochs of terrain."""
    return {
        one.cell.key: one
        for one in group(wanted, records)
        if one.protocol["precision"] == "bf16" and one.protocol.length == LENGTHS[one.cell.task]
    }


def written(group: Group | None) -> str:
    return f"{_summary(group)} ({len(group.records)})" if group else ""


def _summary(group: Group) -> Summary:
    summary = group.summary(METRICS[group.cell.task])
    assert summary is not None
    return summary


def sorting(records: list[RunRecord]) -> str:
    """Table 1 at 10,000 steps: all arms of a loss in a row."""
    runs = found(cells("table1"), records)
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
    for column in dict.fromkeys(cell.column for cell in cells("table1", only="n5")):
        row = [written(runs.get(f"{column}-{arm}")) for arm in SORTING_ARMS.values()]
        lines.append(f"| {LOSSES[column.removesuffix('-n5')]} | " + " | ".join(row) + " |")
    command = "newton-losses reproduce table1 --only n5 --steps 10000 --seeds 3 --precision bf16 --device cuda"
    return "\n".join([*lines, "", f"    {command}", ""])


def paths(records: list[RunRecord]) -> str:
    """Tables 2 and 3 on terrain."""
    wanted = (*cells("table2"), *cells("table3"))
    runs = found(wanted, records)
    lines = [
        "## Shortest-path supervision, on look-alike maps",
        "",
        "Terrain, 12×12, 50 epochs, the paper's λ; maps with exactly the best path in per cent, as above. These maps "
        "are not the paper's: compare the arms, not the levels.",
        "",
        "| | samples | " + " | ".join(ARMS.values()) + " |",
        "|---|---|---|---|---|",
    ]
    for column, cell in {cell.column: cell for cell in wanted}.items():
        settings = cell.config
        name = ", ".join(filter(None, (LOSSES[cell.algorithm], settings.get("loop"), settings.get("norm"))))
        row = [written(runs.get(f"{column}-{arm}")) for arm in ARMS]
        lines.append(f"| {name} | {settings.get('num_samples', '')} | " + " | ".join(row) + " |")
    commands = [
        f"    newton-losses reproduce {table} --seeds 3 --precision bf16 --device cuda"
        for table in ("table2", "table3")
    ]
    return "\n".join([*lines, "", *commands, ""])


def damping(records: list[RunRecord]) -> str:
    """What `damping="auto"` does, beside the paper's λ and the plain loss of the same cell."""
    wanted = [
        *cells("table1", only="*-n5-*-stable"),
        *cells("table2"),
        *cells("table3"),
    ]
    papers = found(wanted, records)
    curved = [cell for cell in wanted if cell.variant != "baseline"]
    automatic = found([cell.changed({"damping": "auto", "spectrum": None}) for cell in curved], records)
    lines = [
        "## Damping without tuning",
        "",
        '`damping="auto"` against the λ that the paper found by hand for each cell: sorting with stable numerics and '
        'paths as in the two tables above. With a Hessian "auto" also takes the eigenvalues by their absolute values, '
        "which the paper leaves as they are. A λ without bounds is the plain loss: the other λ to beat. "
        'The last column is the probability of so large an advantage over "auto" of the better of these two if there '
        "were none (one-sided t-test).",
        "",
        '| | | plain | paper\'s λ | with it | "auto" | p |',
        "|---|---|---|---|---|---|---|",
    ]
    for cell in curved:
        own = automatic.get(cell.key)
        if own is None:
            continue
        plain, tuned = (papers.get(cell.key.replace(cell.variant, arm)) for arm in ("baseline", cell.variant))
        best = max((_summary(one) for one in (plain, tuned) if one), key=lambda summary: summary.mean)
        p = p_value(_summary(own), best)
        row = [_name(cell), ARMS[cell.variant], written(plain), f"{cell.make(device='cpu').damping:g}", written(tuned)]
        lines.append("| " + " | ".join([*row, written(own), "" if math.isnan(p) else f"{p:.2f}"]) + " |")
    commands = [
        "newton-losses sweep sorting --algorithm neuralsort,softsort,logistic,cauchy --curvature hessian,fisher "
        "--damping auto --steps 10000 --seeds 3 --precision bf16 --device cuda",
        "newton-losses sweep paths --algorithm bellman-ford,fenchel-young,smoothed-loss,smoothed-algorithm "
        "--curvature fisher --damping auto --seeds 3 --precision bf16 --device cuda",
        "newton-losses sweep paths --algorithm fenchel-young,smoothed-loss --curvature hessian --damping auto "
        "--seeds 3 --precision bf16 --device cuda",
    ]
    return "\n".join([*lines, "", *(f"    {command}" for command in commands), ""])


def _name(cell: Cell) -> str:
    settings = cell.config
    samples = f"{settings['num_samples']} samples" if "num_samples" in settings else None
    return ", ".join(filter(None, (LOSSES[cell.algorithm], settings.get("loop"), settings.get("norm"), samples)))


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
        damping(records),
        convex_layers(folder / "relu.json"),
        exact_layers(sorted(folder.glob("relu-*.json"))),
    ]
    return "\n".join(sections)


if __name__ == "__main__":
    (ROOT / "docs" / "evidence.md").write_text(page())
