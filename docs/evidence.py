"""Writes docs/evidence.md, and its pictures, from what is in results/: `python docs/evidence.py`. No number is typed
by hand.

Which runs belong to which cell, and what follows from them, is the business of `newton_losses_bench.report`.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence_damping import choice, damping, pictures
from evidence_words import ARMS, NOT_RUN, NOTHING, PATHS_ARMS, commands, probability, table, there, written
from newton_losses_bench.cells import cells
from newton_losses_bench.report import (
    AVERAGING,
    GOAL,
    GOAL_AVERAGED,
    LEAST_SEEDS,
    SELECTION,
    STATES,
    Averaged,
    Evidence,
    Runs,
    Standing,
    averages,
    column_title,
    curved_cells,
    gather,
    how_often_above,
    signed,
    standings,
    sweeps,
)

ROOT = Path(__file__).parent.parent
INTRODUCTION = f"""# Evidence

Measured with this library; every table names the command that fills it. Made from the files in
`results/` by `python docs/evidence.py`.

{SELECTION} For both, a table
has the mean in per cent ± the standard deviation over the seeds, in brackets their number. What was not run says so.
Commands leave out what is no part of an experiment, as `--compile true` and `--jobs`; a run's `config.json` has it.

All runs in `results/` beside the paper's figures, with learning curves, times, gradients and a verdict for each
claim of the paper, are on one page that this makes:

    newton-losses report --results results --out site

The page, `site/index.html`, needs no network; `site/report.md` is the same as Markdown.
"""
# The columns of table 1 by method and numerics.
SORTING_ARMS = {
    ("baseline", "reference"): "plain",
    ("fisher", "reference"): "Fisher",
    ("hessian", "reference"): "Hessian",
    ("clipped", "reference"): "clipped",
    ("energy", "reference"): "energy",
    ("baseline", "stable"): "plain, stable",
    ("fisher", "stable"): "Fisher, stable",
    ("hessian", "stable"): "Hessian, stable",
}


def sorting(found: Evidence) -> str:
    """Table 1 at 10,000 steps, a table for each length of sets that has runs: all arms of a loss in a row."""
    runs = found.sorting[1]
    parts = [
        f"## Ranking supervision, {runs.label}\n",
        "Four-digit MNIST, the paper's λ; sets ordered right. *Stable* is the loss in log space, the others are "
        "cross-entropies on float32 probabilities as in the paper. *Clipped* and *energy* know nothing of curvature: "
        "the gradient's norm clipped at 1, and the gradient divided by its mean square over the batch plus λ.\n",
    ]
    for n in dict.fromkeys(cell.config["n"] for cell in cells("table1")):
        columns = dict.fromkeys(cell.column for cell in cells("table1", only=f"n{n}"))
        groups = there(runs.runs(column, *arm) for column in columns for arm in SORTING_ARMS)
        if groups:
            rows = [[column_title(one), *(written(runs.figure(one, *arm)) for arm in SORTING_ARMS)] for one in columns]
            parts += [f"### Sets of {n}\n", table(["", *SORTING_ARMS.values()], rows)]
            parts.append(commands([f"reproduce table1 --only n{n} --steps {runs.length}"], groups))
    return "\n".join(parts)


def full_length(found: Evidence) -> str:
    """The goal: at the paper's length, our best setting in log space against the paper's best, column by column."""
    full, short = found.sorting
    now, shorter = standings(full), standings(short)
    heads = ["", "the paper's best", *ARMS.values(), "our best", "p", "goal", f"our best, {short.label}"]
    rows = [
        [
            *(column_title(one.column), f"{one.paper}, {ARMS[one.paper_method]}"),
            *(written(one.ours[arm]) for arm in ARMS),
            *(_best(one), probability(one.p), one.state, _best(other)),
        ]
        for one, other in zip(now, shorter, strict=True)
    ]
    groups = there(full.runs(one.column, arm, "stable") for one in now for arm in ARMS)
    papers = f"reproduce table1 --numerics stable --steps {full.length} --set average=true"
    curved = [cell for cell in curved_cells() if cell.task == "sorting"]
    automatic = sweeps(curved, f"--steps {full.length} --average true")
    parts = [
        "## At full length\n",
        "Does our best setting with stable numerics reach the paper's best figure in every column of table 1, after "
        f"the paper's {full.label} and with the weights as trained? The columns are those of the table, and n=15 from "
        f"the paper's text. {STATES} The best of several is a little high by chance, ours of five settings as the "
        "paper's of three or two, with ten seeds each. p is the probability of so large a lead, of ours or of the "
        "paper's, if there were none (Welch's t-test, one-sided). The last column is no test of the goal: our best "
        f"after {short.label}.\n",
        table(heads, rows),
        f"{_count(now)} The goal as a whole: {GOAL.verdict([full]).judgements[0].status.value}.\n",
        averaged_weights(full),
        "One run tells both figures of a setting:\n",
        commands([papers, *automatic], groups, least=LEAST_SEEDS),
    ]
    return "\n".join(parts)


def averaged_weights(full: Runs) -> str:
    """The same runs with averaged weights: how the columns stand, and what the mean brings to each setting."""
    several, standing = averages(full), standings(full, averaged=True)
    start = f"### With averaged weights\n\n{AVERAGING}\n"
    if not several:
        return f"{start}\nNot run.\n"
    heads = ["", "the paper's best", "our best, averaged", "difference", "the paper's best is"]
    rows = [
        [column_title(one.column), f"{one.paper}, {ARMS[one.paper_method]}", _best(one), _difference(one), one.state]
        for one in standing
    ]
    parts = [
        start,
        table(heads, rows),
        f"{_count(standing)} As a whole: {GOAL_AVERAGED.verdict([full]).judgements[0].status.value}.\n",
        "What it brings to each setting, on the seeds that have both figures; the gain is the mean ± the standard "
        "deviation of their difference, seed by seed.\n",
        table(["", "", "as trained", "averaged", "gain"], [averaged_row(one) for one in several]),
        f"The gain is {how_often_above(several)}.\n",
    ]
    return "\n".join(parts)


def averaged_row(one: Averaged) -> list[str]:
    label = [column_title(one.column), ARMS[one.method]]
    deviation = "" if math.isnan(one.gain.std) else f" ± {one.gain.std:.2f}"
    return [*label, written(one.trained), written(one.averaged), signed(one.gain.mean).text + deviation]


def _best(one: Standing) -> str:
    return NOT_RUN if one.best is None else f"{written(one.best[1])}, {ARMS[one.best[0]]}"


def _difference(one: Standing) -> str:
    return NOTHING if one.best is None else signed(one.best[1].mean - one.paper.mean).text


def _count(several: Sequence[Standing]) -> str:
    counts = Counter(one.state for one in several)
    return f"Of {len(several)} columns: {', '.join(f'{count} {state}' for state, count in counts.items())}."


def paths(found: Evidence) -> str:
    """Tables 2 and 3 on terrain."""
    runs = found.paths[1]
    wanted = {cell.key: cell for name in ("table2", "table3") for cell in cells(name)}
    rows = []
    for column in dict.fromkeys(cell.column for cell in wanted.values()):
        figures = (written(runs.figure(column, arm)) if f"{column}-{arm}" in wanted else NOTHING for arm in PATHS_ARMS)
        rows.append([column_title(column), *figures])
    groups = there(runs.runs(cell.column, cell.variant) for cell in wanted.values())
    parts = [
        "## Shortest-path supervision, on look-alike maps\n",
        f"Terrain, 12×12, {runs.length} epochs, the paper's λ; maps with exactly the best path. These maps are not the "
        "paper's: compare the arms, not the levels.\n",
        table(["", *PATHS_ARMS.values()], rows),
        commands(["reproduce table2", "reproduce table3"], groups),
    ]
    return "\n".join(parts)


def convex_layers(path: Path) -> str:
    """The paper's extension, seed by seed."""
    found = json.loads(path.read_text())
    facts, runs = found["facts"], found["runs"]
    steps = len(runs[0]["baseline"]) - 1
    better, count, middle = _comparison(runs)
    marks = [steps * k // 5 for k in range(6)]
    rows = [
        [str(run["seed"]), name, *(f"{run[key][step]:.3f}" for step in marks)]
        for run in runs
        for name, key in (("baseline", "baseline"), ("Fisher", "fisher"))
    ]
    parts = [
        "## Convex layers\n",
        "The paper's extension: two ReLU layers as convex problems and a linear layer, fitted to random numbers; full "
        "batch, Adam at 1e-2, mean squared error, 300 samples and λ = 0.1 unless the command names others ([convex "
        "layers](convex.md)). Training loss after so many steps:\n",
        table(["seed", "", *map(str, marks)], rows),
        f"After {steps} steps Fisher is below the baseline on {better} of {count} seeds; the median loss is "
        f"{middle['fisher']:.3f} with Fisher and {middle['baseline']:.3f} without.\n",
        f"    {facts['command']}\n",
        "Python {python}, torch {torch}, cvxpy {cvxpy}, cvxpylayers {cvxpylayers}.\n".format(**facts),
    ]
    return "\n".join(parts)


def exact_layers(paths: list[Path]) -> str:
    """The same with the known solution in place of the solver, for more seeds and in other settings."""
    rows = []
    for path in paths:
        found = json.loads(path.read_text())
        better, count, middle = _comparison(found["runs"])
        options = found["facts"]["command"].split("convex_layers.py ")[1].split(" --out")[0]
        rows.append([f"`{options}`", f"{better} of {count}", f"{middle['fisher']:.3f}", f"{middle['baseline']:.3f}"])
    heads = ["`python examples/convex_layers.py …`", "Fisher below the baseline", "median, Fisher", "median, baseline"]
    words = "With the known solution max(Wx + b, 0) in the place of the solver, and so without its errors:\n"
    return "\n".join([words, table(heads, rows)])


def _comparison(runs: list[dict[str, Any]]) -> tuple[int, int, dict[str, float]]:
    better = sum(run["fisher"][-1] < run["baseline"][-1] for run in runs)
    return better, len(runs), {key: statistics.median(run[key][-1] for run in runs) for key in ("baseline", "fisher")}


def page(results: Path = ROOT / "results") -> str:
    found, convex = gather(results), results / "cvxpy"
    sections = [
        INTRODUCTION,
        sorting(found),
        full_length(found),
        paths(found),
        damping(found),
        choice(found),
        convex_layers(convex / "relu.json"),
        exact_layers(sorted(convex.glob("relu-*.json"))),
    ]
    return "\n".join(filter(None, sections))


if __name__ == "__main__":
    (ROOT / "docs" / "evidence.md").write_text(page())
    for name, (_, _, svg) in pictures(gather(ROOT / "results")).items():
        (ROOT / "docs" / "pictures" / name).write_text(svg)
