"""The part of the goal's section about averaged weights: apart from the goal, which is about weights as trained."""

from collections.abc import Sequence
from dataclasses import replace

from ._averaged import Averaged, averages, how_often_above
from ._blocks import NOTHING, Block, Cell, Code, Figure, Heading, Paragraph, Table
from ._figures import averaged_panel
from ._goal import AVERAGING, Standing, standings
from ._measured import Runs, main_metric
from ._names import METHOD_TITLES, column_title
from ._tables import difference, plain, signed


def averaged_section(runs: Runs) -> list[Block]:
    """How every column stands with averaged weights, and what the mean brings to each setting."""
    blocks: list[Block] = [Heading(3, "With averaged weights", "goal-averaged"), Paragraph(AVERAGING)]
    several = averages(runs)
    if not several:
        return [
            *blocks,
            Paragraph(["Not run. ", Code("newton-losses reproduce table1 --set average=true"), " evaluates them."]),
        ]
    columns = standings(runs, averaged=True)
    return [*blocks, _columns(columns, runs.label), *_curves(runs, columns), _gains(several, runs.label)]


def _columns(several: Sequence[Standing], where: str) -> Table:
    """A row a column of table 1, with what matters most in the part that a phone shows."""
    rows = []
    for one in several:
        setting, figure = one.best or ("", None)
        rows.append(
            (
                Cell(column_title(one.column)),
                Cell(one.state),
                difference(figure, one.paper),
                plain(figure, seeds=True),
                Cell(METHOD_TITLES[setting]) if setting else NOTHING,
                plain(one.paper),
            )
        )
    caption = (
        f"Sets right in %, {where}, in log space: the best of our settings with averaged weights beside the paper’s "
        "best, which is of weights as trained. Whether that is reached follows by the rule of the goal. The difference "
        "is ours less the paper’s."
    )
    heads = ("loss", "the paper’s best is", "difference", "our best, averaged", "setting", "the paper’s best")
    return Table("averaged-columns", caption, heads, tuple(rows))


def _curves(runs: Runs, several: Sequence[Standing]) -> list[Block]:
    """Of our best setting in each column, on the seeds that have both figures."""
    panels = []
    for one in several:
        found = None if one.best is None else runs.runs(one.column, one.best[0], "stable")
        if one.best is not None and found is not None:
            group = found.with_average(main_metric(found.cell))
            panels.append(averaged_panel(group, METHOD_TITLES[one.best[0]], one.paper))
    drawn = tuple(panel for panel in panels if panel is not None)
    caption = (
        "Test figures over the steps, of the same runs with the weights as trained and with their mean, and the level "
        "of the paper’s best: means over the seeds and their 95 % intervals."
    )
    return [Figure(drawn, caption)] if drawn else []


def _gains(several: Sequence[Averaged], where: str) -> Table:
    rows = [
        (
            Cell(column_title(one.column)),
            Cell(METHOD_TITLES[one.method]),
            *(plain(figure, seeds=True) for figure in (one.trained, one.averaged)),
            replace(plain(one.gain), text=signed(one.gain.mean).text),
        )
        for one in several
    ]
    caption = (
        f"What averaging brings to each setting, {where}, on the seeds that have both figures; the gain is the mean ± "
        f"standard deviation of the difference seed by seed. It is {how_often_above(several)}."
    )
    return Table("averaged-gains", caption, ("loss", "method", "as trained", "averaged", "gain"), tuple(rows), labels=2)
