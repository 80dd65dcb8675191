"""A table of ours beside the paper's, as text."""

import math
from collections.abc import Iterable, Sequence

from ..results import Summary, mark, summarise
from ._cells import MINUTES, Cell
from ._groups import TIME, Group, Protocol

MARKS = {"black": "**", "grey": "*", "": ""}
LEGEND = "** significantly better than the baseline (one-sided t-test, .05); * a better mean"


def comparison(groups: Iterable[Group], cells: Sequence[Cell]) -> str:
    """Our figures beside the paper's, protocol by protocol, with the paper's marks on both.

    A cell without a run under a protocol is left out there, and the last line counts those.
    """
    by_protocol: dict[Protocol, list[Group]] = {}
    for one in groups:
        by_protocol.setdefault(one.protocol, []).append(one)
    if not by_protocol:
        return "No run of these cells is finished yet."
    parts = []
    for protocol, members in sorted(by_protocol.items(), key=lambda item: (-item[0].length, str(item[0]))):
        lines = [f"{protocol}{_reservations(protocol)}", *_rows(members), *_pairs(members)]
        missing = len({cell.key for cell in cells} - {one.cell.key for one in members})
        if missing:
            lines.append(f"{missing} of {len(cells)} cells have no run here yet.")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, LEGEND])


def _reservations(protocol: Protocol) -> str:
    """What keeps the figures from being compared with the paper's."""
    notes = [] if protocol.is_full else ["not the paper's length"]
    if not protocol.has_papers_data:
        notes.append("a look-alike of the paper's maps" if protocol["data"] == "terrain" else "not the paper's data")
    return f" ({', '.join(notes)})" if notes else ""


def _rows(groups: list[Group]) -> list[str]:
    metrics = _metrics(groups)
    header = ["cell", "seeds"]
    for metric in metrics:
        name = metric.replace("_", " ")
        header += [name, "paper", "difference"] if metric != TIME else [name, "ratio", "paper's ratio"]
    rows = [header]
    for one in groups:
        rows.append([one.cell.key, str(len(one.records)), *(text for m in metrics for text in _figure(one, groups, m))])
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _pairs(groups: list[Group]) -> list[str]:
    """Where the paper compares seed by seed: on how many the loss is below the baseline's."""
    if groups[0].cell.paper_seeds is None:
        return []
    losses = {one.cell.variant: {record.seed: record.test["loss"] for record in one.records} for one in groups}
    baseline, fisher = losses.get("baseline", {}), losses.get("fisher", {})
    both = sorted(baseline.keys() & fisher.keys())
    below = sum(fisher[seed] < baseline[seed] for seed in both)
    return [f"Fisher is below the baseline on {below} of {len(both)} seeds; in the paper on 5 of 5."] if both else []


def _metrics(groups: list[Group]) -> list[str]:
    if groups[0].cell.table == "runtimes":
        return [TIME]
    first = groups[0].records[0].test
    # Beside the paper's figures there may be others, as the paths that are as cheap: not for this table.
    papers = {metric for one in groups for metric in one.cell.paper or {}}
    return [metric for metric in first if metric in papers] or list(first)


def _figure(one: Group, groups: list[Group], metric: str) -> tuple[str, str, str]:
    ours = one.summary(metric)
    if ours is None:
        return "", "", ""
    baseline = _baseline(one, groups)
    if metric == TIME:
        return _time(one, ours, baseline)
    reference = baseline.summary(metric) if baseline and baseline is not one else None
    own = f"{_digits(ours)}{MARKS[mark(reference, ours)] if reference and metric != 'loss' else ''}"
    paper = _paper(one, metric)
    if paper is None:
        return own, "", ""
    bold = (one.cell.paper_bold or {}).get(metric, "")
    return own, f"{_digits(paper)}{MARKS[bold]}", f"{ours.mean - paper.mean:+.2f}"


def _paper(one: Group, metric: str) -> Summary | None:
    if one.cell.paper_seeds and metric == "loss":
        return summarise(one.cell.paper_seeds.values())
    if not one.cell.paper or metric not in one.cell.paper:
        return None
    mean, std = one.cell.paper[metric]
    return Summary(mean, std, 10)


def _time(one: Group, ours: Summary, baseline: Group | None) -> tuple[str, str, str]:
    """Milliseconds a step, and how many times the baseline's they are: here, and in the paper's hours."""
    if baseline is None or baseline is one:
        return f"{ours.mean:.3f}", "", ""
    reference = baseline.summary(TIME)
    assert reference is not None
    paper = ""
    if one.cell.paper and baseline.cell.paper:
        paper = f"{one.cell.paper[MINUTES][0] / baseline.cell.paper[MINUTES][0]:.2f}"
    return f"{ours.mean:.3f}", f"{ours.mean / reference.mean:.2f}", paper


def _baseline(one: Group, groups: list[Group]) -> Group | None:
    """The plain baseline of a cell's column with the cell's numerics; that of the paper's for the controls."""
    for other in groups:
        cell = other.cell
        plain = cell.variant == "baseline" and cell.control is None
        if plain and (cell.column, cell.numerics) == (one.cell.column, one.cell.numerics):
            return other
    return None


def _digits(found: Summary) -> str:
    text = f"{found.mean:.2f}" if abs(found.mean) >= 1 else f"{found.mean:.3f}"
    if math.isnan(found.std):
        return text
    return f"{text} ± {found.std:.2f}" if abs(found.mean) >= 1 else f"{text} ± {found.std:.3f}"
