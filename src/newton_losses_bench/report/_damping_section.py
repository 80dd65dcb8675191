"""The section about `damping="auto"`: no λ to tune, and what that costs or brings beside one that was tuned."""

import math
from collections.abc import Sequence

from ..statistics import Summary
from ._blocks import NOTHING, Block, Cell, Code, Figure, Heading, Paragraph, Table
from ._damping import RUINED, Automatic, Chosen, advantage, automatic, chosen, fixed_dampings, how_often_behind
from ._evidence import Evidence
from ._figures import grid_panels
from ._measured import GRID
from ._names import METHOD_TITLES, column_title
from ._tables import plain, signed


def damping_section(found: Evidence) -> list[Block]:
    """Every cell that has runs with "auto", and those of which the whole grid of λ was run."""
    short, look_alike = found.sorting[1], found.paths[1]
    every = [*automatic(short, "sorting"), *automatic(look_alike, "paths")]
    blocks: list[Block] = [Heading(2, "Damping without tuning", "auto")]
    if not every:
        text = 'Not run. "auto" takes λ from the curvature of each batch; the paper tunes it cell by cell. '
        return [*blocks, Paragraph([text, Code("newton-losses sweep … --damping auto"), " runs it."])]
    blocks.append(_beside_the_papers(every, f"{short.label} and {look_alike.label}"))
    sorts, maps = chosen(short, "sorting"), chosen(look_alike, "paths")
    if sorts or maps:
        blocks.append(_beside_the_grid({short.label: sorts, look_alike.label: maps}))
        blocks += _on_average({f"sorting, {short.label}": sorts, f"paths, {look_alike.label}": maps})
        blocks += _one_for_all([*sorts, *maps])
        caption = (
            "The same as pictures: one seed with every λ of the grid, and in the same colour “auto” as a level with a "
            "band, its mean and standard deviation over the seeds."
        )
        blocks.append(Figure(tuple(grid_panels([*sorts, *maps])), caption))
    return blocks


def _beside_the_papers(every: Sequence[Automatic], where: str) -> Table:
    caption = (
        f"Test accuracy in %, {where}: with the λ that the paper found for the cell, and with “auto”, which takes it "
        "from the curvature, and a Hessian’s eigenvalues by absolute value; sorting in log space. A λ without bounds "
        "is the plain loss, the other one to beat. p: the probability of so large an advantage over “auto” of the "
        "better of these two if there were none (Welch’s t-test, one-sided); “paired”: the same from the differences "
        "seed by seed, whose runs begin with the same weights and see the same batches. p is "
        f"{how_often_behind(every)}."
    )
    rows = [
        (
            *_labels(one),
            plain(one.plain, seeds=True),
            _number(float(one.cell.config["damping"])),
            *(plain(one.tuned, seeds=True), plain(one.own, seeds=True), _probability(one.p), _probability(one.paired)),
        )
        for one in every
    ]
    heads = ("loss", "curvature", "plain", "the paper’s λ", "with it", "“auto”", "p", "paired")
    return Table("damping-auto", caption, heads, tuple(rows), labels=2)


def _beside_the_grid(kinds: dict[str, list[Chosen]]) -> Table:
    several = [one for found in kinds.values() for one in found]
    where = " and ".join(label for label, found in kinds.items() if found)
    caption = (
        f"The same against a λ that is chosen as the paper chose its own, {where}, sorting in log space: the first "
        "columns are the test figures of one seed for every λ of the paper’s grid; the one with that seed’s highest "
        "validation was run with other seeds too. Its mean has the luck of the choice in it, that of “auto” has not. "
        f"p and “paired” as above; p is {how_often_behind(several)}."
    )
    rows = [
        (
            *_labels(one),
            *(Cell(f"{figure:.1f}", figure) for figure in one.of_a_seed.values()),
            _number(one.damping),
            *(plain(one.own, seeds=True), plain(one.auto, seeds=True), _probability(one.p), _probability(one.paired)),
        )
        for one in several
    ]
    heads = ("loss", "curvature", *(f"{damping:g}" for damping in GRID), "chosen λ", "with it", "“auto”", "p", "paired")
    return Table("damping-grid", caption, heads, tuple(rows), labels=2)


def _on_average(kinds: dict[str, list[Chosen]]) -> list[Block]:
    averages = {label: one for label, several in kinds.items() if (one := advantage(several)) is not None}
    caption = (
        "The chosen λ less “auto”, in percentage points: mean over the cells of the table above ± its standard error. "
        "The last column leaves out the seed that chose."
    )
    rows = [
        (Cell(label), _number(one.own.count), _number(one.ahead), _difference(one.own), _difference(one.unseen))
        for label, one in averages.items()
    ]
    heads = ("runs", "cells", "of them ahead", "all seeds", "seeds that did not choose")
    return [Table("damping-grid-average", caption, heads, tuple(rows), labels=1)] if rows else []


def _one_for_all(several: Sequence[Chosen]) -> list[Block]:
    found = fixed_dampings(several)
    if not found:
        return []
    caption = (
        f"One λ for all {found[0].ahead.count} cells: one seed less the mean of “auto”, in percentage points, mean "
        f"over the cells ± its standard error; and in how many it is more than {RUINED} points behind."
    )
    rows = [(_number(one.damping), _difference(one.ahead), _number(one.ruined)) for one in found]
    return [Table("damping-fixed", caption, ("λ", "less “auto”", "ruined"), tuple(rows), labels=1)]


def _difference(figure: Summary) -> Cell:
    return Cell(f"{signed(figure.mean).text} ± {figure.error:.2f}", figure.mean)


def _labels(one: Automatic | Chosen) -> tuple[Cell, Cell]:
    return Cell(column_title(one.cell.column)), Cell(METHOD_TITLES[one.cell.variant])


def _number(value: float) -> Cell:
    return Cell(f"{value:g}", value)


def _probability(p: float) -> Cell:
    return NOTHING if math.isnan(p) else Cell(f"{p:.2f}", p)
