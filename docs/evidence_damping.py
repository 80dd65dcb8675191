"""The sections of docs/evidence.md about `damping="auto"`, with their pictures."""

from evidence_words import ARMS, commands, probability, table, written
from newton_losses_bench.report import (
    GRID,
    RUINED,
    Advantage,
    Automatic,
    Chosen,
    Evidence,
    advantage,
    automatic,
    chosen,
    column_title,
    fixed_dampings,
    grid_panels,
    how_often_behind,
    signed,
    standalone,
    sweeps,
)

# The losses of which there is a picture with every λ: one that forgives a wrong one, and three that do not.
PICTURED = ("softsort-n10", "fenchel-young-10", "cauchy-n10", "smoothed-loss-10")


def automatic_row(one: Automatic) -> list[str]:
    label = [column_title(one.cell.column), ARMS[one.cell.variant], written(one.plain)]
    return [
        *label,
        f"{one.cell.config['damping']:g}",
        written(one.tuned),
        written(one.own),
        probability(one.p),
        probability(one.paired),
    ]


def damping(found: Evidence) -> str:
    """What `damping="auto"` does, beside the paper's λ and the plain loss of the same cell."""
    parts = [
        "## Damping without tuning\n",
        '`damping="auto"` against the λ that the paper found by hand for each cell: sorting with stable numerics and '
        'paths as in the tables above, every cell that has a run with "auto". With a Hessian "auto" also takes the '
        "eigenvalues by their absolute values, which the paper leaves as they are. A λ without bounds is the plain "
        'loss: the other λ to beat. p is the probability of so large an advantage over "auto" of the better of these '
        "two if there were none (Welch's t-test, one-sided; it takes two seeds of both). The last column is the same "
        "from the differences seed by seed, since runs of one seed begin with the same weights and see the same "
        "batches.\n",
    ]
    sorted_sets, maps = automatic(found.sorting[1], "sorting"), automatic(found.paths[1], "paths")
    every = [*sorted_sets, *maps]
    heads = ["", "", "plain", "paper's λ", "with it", '"auto"', "p", "paired"]
    parts.append(table(heads, [automatic_row(one) for one in every]))
    compared = [(one.own, one.rival) for one in every if one.rival is not None]
    above = sum(own.mean >= rival.mean for own, rival in compared)
    parts.append(
        f'The mean of "auto" is at least that of the better of the two in {above} of {len(compared)} cells; p is '
        f"{how_often_behind(every)}.\n\n"
    )
    for those, length in ((sorted_sets, f"--steps {found.sorting[1].length}"), (maps, "")):
        parts[-1] += commands(sweeps([one.cell for one in those], length), [one.group for one in those])
    return "\n".join(parts)


def chosen_row(one: Chosen) -> list[str]:
    label = [column_title(one.cell.column), ARMS[one.cell.variant]]
    figures = [f"{figure:.1f}" for figure in one.of_a_seed.values()]
    return [
        *label,
        *figures,
        f"{one.damping:g}",
        written(one.own),
        written(one.auto),
        probability(one.p),
        probability(one.paired),
    ]


def advantage_row(label: str, one: Advantage) -> list[str]:
    figures = [f"{signed(figure.mean).text} ± {figure.error:.2f}" for figure in (one.own, one.unseen)]
    return [label, str(one.own.count), str(one.ahead), *figures]


def choice(found: Evidence) -> str:
    """`damping="auto"` beside a λ that is chosen as the paper chose its own."""
    sorts, maps = found.sorting[1], found.paths[1]
    kinds = {"sorting": (chosen(sorts, "sorting"), f"--steps {sorts.length}"), "paths": (chosen(maps, "paths"), "")}
    every = [one for several, _ in kinds.values() for one in several]
    if not every:
        return ""
    heads = ["", "", *(f"{damping:g}" for damping in GRID), "chosen λ", "with it", '"auto"', "p", "paired"]
    parts = [
        "### Against the paper's grid\n",
        "The paper chose each λ by one seed from a grid. The same here, with sorting in stable numerics: the first "
        "columns are the test figures of seed 0 for every λ of the grid, of which the one with the highest validation "
        'was run with the other seeds too. Its own mean has the luck of that choice in it, "auto" has not. The last '
        'columns are as above, for an advantage of the chosen λ over "auto".\n',
        table(heads, [chosen_row(one) for one in every]),
        f"p is {how_often_behind(every)}.\n",
    ]
    averages = {task: advantage(several) for task, (several, _) in kinds.items()}
    lines = [advantage_row(task, one) for task, one in averages.items() if one is not None]
    if lines:
        heads = ["", "cells", "of them ahead", "all seeds", "seeds that did not choose"]
        text = 'The chosen λ less "auto" in percentage points, the mean over these cells ± its standard error:\n'
        parts += [text, table(heads, lines)]
    fixed = fixed_dampings(every)
    if fixed:
        heads = ["", *(f"{one.damping:g}" for one in fixed)]
        lines = [
            ["mean ± its standard error", *(f"{signed(one.ahead.mean).text} ± {one.ahead.error:.2f}" for one in fixed)],
            [f"cells more than {RUINED} points behind", *(str(one.ruined) for one in fixed)],
        ]
        text = f'One λ for all {fixed[0].ahead.count} cells, seed 0 less the mean of "auto":\n'
        parts += [text, table(heads, lines)]
    shown = pictures(found)
    if shown:
        text = (
            'Some of it as pictures, seed 0 over λ; "auto" is in the same colour a level with a band, its mean and '
            "standard deviation over the seeds:\n"
        )
        parts += [text, *(table(*pair) for pair in pairs(shown))]
    words = ",".join(f"{damping:g}" for damping in GRID)
    together = ""
    for several, length in kinds.values():
        rest = [command for one in several for command in sweeps([one.cell], length, f"{one.damping:g}")]
        together += commands(sweeps([one.cell for one in several], length, words), [])
        together += commands(rest, [one.group for one in several])
    return "\n".join([*parts, together])


def pictures(found: Evidence) -> dict[str, tuple[str, str, str]]:
    """The pictures of the grid by their files: title, what is to be seen, and SVG."""
    panels = grid_panels([*chosen(found.sorting[1], "sorting"), *chosen(found.paths[1], "paths")])
    named = {panel.name: panel for panel in panels}
    kept = [named[f"damping-{column}"] for column in PICTURED if f"damping-{column}" in named]
    return {f"{one.name}.svg": (one.title, one.words, standalone(one.svg)) for one in kept}


def pairs(shown: dict[str, tuple[str, str, str]]) -> list[tuple[list[str], list[list[str]]]]:
    """Pictures two by two under their titles, as tables."""
    cells = [(title, f"![{words}](pictures/{name})") for name, (title, words, _) in shown.items()]
    rows = [cells[first : first + 2] for first in range(0, len(cells), 2)]
    return [([title for title, _ in row], [[picture for _, picture in row]]) for row in rows]
