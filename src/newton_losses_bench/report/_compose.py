"""The report put together: which sections there are, in which order, and the words between the tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ._blocks import Block, Cell, Code, Figure, Heading, Link, Paragraph, Report, Status, Strong, Table, Verdict
from ._claims import ABLATION_CLAIMS, PATHS_CLAIMS, SORTING_CLAIMS
from ._convex import convex_table, convex_verdict
from ._damping_section import damping_section
from ._evidence import Evidence, gather
from ._figures import ablation_panels, path_panels, sorting_panels
from ._gradient_section import gradient_section, gradient_verdicts
from ._measured import Runs
from ._others import other_runs
from ._provenance import provenance
from ._questions import GOAL, GOAL_AVERAGED, QUESTIONS
from ._runtimes import runtime_table, runtime_verdicts
from ._table_sections import table_sections
from ._tables import done


def silent(_: str) -> None:
    """Tell nobody."""


def compose(results: Path, tell: Callable[[str], None] = silent) -> Report:
    """The report about everything under a folder of results. `tell` hears what is being done."""
    tell(f"reading the runs in {results}")
    found = gather(results)
    tell("drawing the gradients of the sorting losses, which takes longest")
    groups = _verdicts(found)
    body: list[Block] = [
        *table_sections(found),
        *_curves(found),
        *_ablation(found),
        *damping_section(found),
        *_times(found),
        *gradient_section(),
        *_convex(found),
    ]
    # Last, when it is known which runs the sections before have shown.
    body += other_runs(found.measured, results)
    body += provenance(found.measured, found.unfinished, found.notes, results)
    return Report(
        "Newton losses, measured",
        "What this library measured, beside what the paper reports",
        (*_summary(found, groups), *_claims(groups), *body),
    )


def _verdicts(found: Evidence) -> dict[str, list[Verdict]]:
    return {
        "Sorting": [claim.verdict(found.sorting) for claim in (*SORTING_CLAIMS, *ABLATION_CLAIMS)],
        "Shortest paths": [claim.verdict(found.paths) for claim in PATHS_CLAIMS],
        "Time, gradients, convex layers": [
            *runtime_verdicts(found.timings),
            *gradient_verdicts(),
            convex_verdict(found.convex),
        ],
        "What the paper does not ask": [
            *(claim.verdict(found.sorting) for claim in QUESTIONS),
            *(claim.verdict(found.sorting[:1]) for claim in (GOAL, GOAL_AVERAGED)),
        ],
    }


def _summary(found: Evidence, groups: dict[str, list[Verdict]]) -> list[Block]:
    full, benchmark = found.sorting[0], found.paths[0]
    cells = [done(full, "table1"), *(done(benchmark, table) for table in ("table2", "table3"))]
    run, total = sum(cell[0] for cell in cells), sum(cell[2] for cell in cells)
    seeds = sum(cell[1] for cell in cells)
    count = len(found.measured.records)
    return [
        Paragraph(
            [
                "The authors of “Newton Losses” (NeurIPS 2024) never released code. This page sets what this library "
                "measured beside what they report. It is made from ",
                Strong(f"{count} finished run{'' if count == 1 else 's'}"),
                f". Of the paper’s {total} cells, at the paper’s own length and on its own data, ",
                Strong(f"{run or 'none'} {'has' if run < 2 else 'have'} been run"),
                f"{f', {seeds} of them with the paper’s ten seeds' if run else ''}. What has not been run says so.",
            ],
            "lead",
        ),
        _scores(found, groups),
    ]


def _scores(found: Evidence, groups: dict[str, list[Verdict]]) -> Table:
    """How far every setting is: the cells that have runs, and what became of the claims."""
    (full, short), (benchmark, look_alike) = found.sorting, found.paths
    sorting, paths, asked = groups["Sorting"], groups["Shortest paths"], groups["What the paper does not ask"]
    rows = [
        _score("Table 1", full, ("table1",), sorting),
        _score("Table 1, shortened", short, ("table1",), sorting),
        _score("Tables 2 and 3", benchmark, ("table2", "table3"), paths),
        _score("Tables 2 and 3", look_alike, ("table2", "table3"), paths),
        _score("Curvature or numerics?", full, ("table1",), asked, papers=False),
        _score("Curvature or numerics?", short, ("table1",), asked, papers=False),
    ]
    return Table(
        "scores",
        [
            "How much is covered, setting by setting, and what became of the claims there. The last two rows are cells "
            "and questions that the paper does not have. ",
            Link("Each claim, with its rule and its figures", "claims"),
            ", is below.",
        ],
        ("what", "setting", "run", "of", "with 10 seeds", *(status.value for status in Status)),
        tuple(rows),
        labels=2,
        groups=(("", 2), ("cells", 3), ("claims", 3)),
    )


def _score(
    name: str, runs: Runs, tables: tuple[str, ...], verdicts: Sequence[Verdict], *, papers: bool = True
) -> tuple[Cell, ...]:
    counted = (done(runs, table, papers=papers) for table in tables)
    run, seeds, total = (sum(part) for part in zip(*counted, strict=True))
    statuses = [one.status for verdict in verdicts for one in verdict.judgements if one.setting == runs.label]
    counts = [run, total, seeds, *(statuses.count(status) for status in Status)]
    return (Cell(name), Cell(runs.label), *(Cell(str(count), float(count)) for count in counts))


def _claims(groups: dict[str, list[Verdict]]) -> list[Block]:
    blocks: list[Block] = [
        Heading(2, "The claims", "claims"),
        Paragraph(
            "Each claim of the paper has one rule, the same for every setting. Figures count when there are at least "
            "three seeds on both sides. “Not confirmed” says that the rule’s condition was not met here; it does not "
            "say why."
        ),
    ]
    for title, verdicts in groups.items():
        blocks += [Heading(3, title, "claims-" + title.split()[0].lower().strip(",")), *verdicts]
    return blocks


def _curves(found: Evidence) -> list[Block]:
    others = [Runs(found.measured, f"{length:,} steps", length, "mnist") for length in found.measured.lengths()]
    blocks: list[Block] = [
        Heading(2, "Learning curves", "curves"),
        Paragraph(
            "Test accuracy during training, as in the paper’s figure 3: the mean over the seeds, and the 95 % interval "
            "of that mean (t distribution) where there is more than one seed. Losses without a run are left out."
        ),
    ]
    for title, panels in (
        *((f"Shortest paths, {runs.label}", path_panels(runs)) for runs in found.paths),
        *((f"Ranking, {runs.label}", sorting_panels(runs)) for runs in (*found.sorting, *others)),
    ):
        if panels:
            anchor = "curves-" + title.split(", ")[1].split()[0].replace(",", "").lower()
            blocks += [Heading(3, title, anchor), Figure(tuple(panels), f"{title}: means and their 95 % intervals.")]
    return blocks if len(blocks) > 2 else [blocks[0], Paragraph("Not run.")]


def _ablation(found: Evidence) -> list[Block]:
    panels = ablation_panels(found.sorting)
    blocks: list[Block] = [Heading(2, "The damping λ", "ablation")]
    if not panels:
        text = "Not run. The paper’s figure 4 varies λ over 13 values from 0.001 to 1000, for NeuralSort and SoftSort."
        return [*blocks, Paragraph([text, " ", Code("newton-losses reproduce ablation"), " runs it."])]
    return [
        *blocks,
        Figure(
            tuple(panels),
            "Element-wise accuracy over λ at n = 5, as in the paper’s figure 4: the mean over the seeds, each seed "
            "faintly behind it. Values of λ that were not run are left out.",
        ),
    ]


def _times(found: Evidence) -> list[Block]:
    caption = (
        "A step’s time as a multiple of the baseline’s, which was timed beside it on the same device. The paper’s "
        "are those of whole trainings on an A6000. Times are never compared across devices."
    )
    blocks: list[Block] = [Heading(2, "Time", "time"), runtime_table(found.timings, "runtimes", caption)]
    if not found.timings:
        blocks.append(Paragraph("Not run."))
    return blocks


def _convex(found: Evidence) -> list[Block]:
    caption = (
        "Training loss after the last step, without → with the empirical Fisher, for the first five seeds. Only the "
        "two losses of one seed can be compared; our seeds are not the paper’s. Where it says so, the known solution "
        "took the place of the solver, and of its errors."
    )
    return [Heading(2, "Convex layers", "convex"), convex_table(found.convex, "convex-layers", caption)]
