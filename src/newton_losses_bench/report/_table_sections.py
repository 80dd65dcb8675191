"""The sections about the paper's tables, with the words that say how far each is."""

from ._averaged_section import averaged_section
from ._blocks import Block, Heading, Paragraph
from ._evidence import Evidence
from ._goal import STATES
from ._measured import Runs
from ._tables import control_table, done, goal_table, paths_table, sorting_table

_MARKS = (
    "Mean ± standard deviation over the seeds, ten for the paper, for ours in brackets. Bold: better "
    "than the baseline by a one-sided t-test at .05; bold grey: a better mean; both as in the paper."
)
_DIFFERENCE = " The difference is ours less the paper’s."


def table_sections(found: Evidence) -> list[Block]:
    """Tables 1, 2 and 3, and between them what the paper does not have."""
    return [*_ranking(found), *_controls(found), *_goal(found), *_paths(found)]


def _ranking(found: Evidence) -> list[Block]:
    full, short = found.sorting
    blocks: list[Block] = [
        Heading(2, "Table 1: ranking supervision", "table1"),
        Heading(3, "Full length, 100,000 steps", "table1-full"),
        sorting_table(full, "sorting-full", [f"So far {_state(full, 'table1')}", _MARKS, _DIFFERENCE]),
        Heading(3, "Shortened, 10,000 steps", "table1-short"),
        sorting_table(
            short,
            "sorting-short",
            [
                f"So far {_state(short, 'table1')}",
                "The paper’s figures are those of ten times as many steps, so that the difference is no test of a "
                "reproduction; the order of the methods is. ",
                _MARKS,
            ],
        ),
    ]
    for length in found.measured.lengths():
        other = Runs(found.measured, f"{length:,} steps", length, "mnist")
        table = sorting_table(other, f"sorting-{length}", f"Only the cells that were run. {_MARKS}", measured_only=True)
        if table.rows:
            blocks += [Heading(3, f"Another length, {length:,} steps", f"table1-{length}"), table]
    return blocks


def _controls(found: Evidence) -> list[Block]:
    blocks: list[Block] = [
        Heading(2, "Curvature or numerics?", "controls"),
        Paragraph(
            "The paper’s losses take the logarithm of probabilities that float32 has rounded. Three things that know "
            "nothing of curvature may do as well as a Newton loss: computing the same loss in log space, clipping the "
            "norm of the gradient at 1, and dividing the gradient by its energy over the batch, a single number."
        ),
    ]
    for runs in found.sorting:
        caption = f"Sets right in %, {runs.label}. {_MARKS}"
        blocks.append(control_table(runs, f"controls-{runs.length}", caption))
    return blocks


def _goal(found: Evidence) -> list[Block]:
    full = found.sorting[0]
    caption = (
        f"Sets right in %, {full.label}, in log space, each network as it was trained, beside the best that the paper "
        f"has in each column. {STATES} Mean ± standard deviation over the seeds, ten for the paper, for ours in "
        f"brackets.{_DIFFERENCE}"
    )
    return [Heading(2, "Our goal", "goal"), goal_table(full, "goal-columns", caption), *averaged_section(full)]


def _paths(found: Evidence) -> list[Block]:
    benchmark, look_alike = found.paths
    blocks: list[Block] = []
    for name, title in (("table2", "Table 2: relaxed Bellman-Ford"), ("table3", "Table 3: stochastic methods")):
        state = [
            f"On Warcraft: {_state(benchmark, name)}",
            f"On terrain: {_state(look_alike, name)}Terrain is a look-alike of Warcraft that this library draws. It "
            "is not the benchmark: only gains over the baseline can be compared with the paper’s, not accuracies. ",
            _MARKS,
            _DIFFERENCE,
        ]
        blocks += [Heading(2, title, name), paths_table(name, benchmark, look_alike, f"paths-{name}", state)]
    return blocks


def _state(runs: Runs, table: str) -> str:
    run, seeds, total = done(runs, table)
    if run == 0:
        return f"none of the {total} cells has been run. "
    how = "; ".join(runs.protocols(table))
    return f"{run} of the {total} cells have been run ({how}), {seeds} of them with ten seeds. "
