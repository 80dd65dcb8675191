"""The paper's table about convex layers, beside what was measured: run folders, and the files of the example."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..cells import cells
from ._blocks import NOTHING, Cell, Table, Text, Verdict
from ._found import relative
from ._measured import Measured
from ._rules import Part, judge

SEEDS = 5


@dataclass(frozen=True)
class Losses:
    """Final training losses by seed, without and with the empirical Fisher, and where they come from."""

    source: str
    baseline: dict[int, float]
    fisher: dict[int, float]

    @property
    def pairs(self) -> dict[int, tuple[float, float]]:
        """The seeds that both have: losses of different seeds cannot be compared."""
        return {seed: (self.baseline[seed], self.fisher[seed]) for seed in sorted(self.baseline) if seed in self.fisher}


def paper_losses() -> Losses:
    """The paper's own table.

    >>> paper_losses().pairs[1]
    (0.322, 0.185)
    """
    found = {cell.variant: cell.paper_seeds or {} for cell in cells("cvxpy")}
    return Losses("the paper", found["baseline"], found["fisher"])


def convex_losses(results: Path, measured: Measured) -> tuple[list[Losses], list[str]]:
    """What was measured with the solver: as runs, and by `examples/convex_layers.py` in files of JSON.

    The second is what was left out.
    """
    found, notes = [], []
    runs = {cell.variant: measured.group("cvxpy", cell.key, lambda _: True) for cell in cells("cvxpy")}
    losses = {
        variant: {record.seed: record.test["loss"] for record in one.records if "loss" in record.test} if one else {}
        for variant, one in runs.items()
    }
    if any(losses.values()):
        found.append(Losses("runs", losses["baseline"], losses["fisher"]))
    for path in sorted(results.rglob("*.json"), key=lambda path: ("exact" in path.stem, path)):
        if path.parent.name != "cvxpy":
            continue
        if (read := _read(path)) is not None:
            found.append(read)
        else:
            notes.append(f"{relative(path, results)}: no losses by seed.")
    return found, notes


def _read(path: Path) -> Losses | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        runs = content["runs"]
        finals = {key: {int(run["seed"]): float(run[key][-1]) for run in runs} for key in ("baseline", "fisher")}
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return None  # some other file, or a folder
    kind = "known solution" if "exact" in path.stem else "cvxpylayers"
    return Losses(f"{kind} ({path.name})", finals["baseline"], finals["fisher"])


def convex_table(found: list[Losses], name: str, caption: Text) -> Table:
    """A row a source: on how many seeds the Fisher ends lower, and the two losses of the first seeds."""
    rows = []
    for one in (paper_losses(), *found):
        pairs = one.pairs
        better = sum(fisher < baseline for baseline, fisher in pairs.values())
        first = [pairs[seed] for seed in list(pairs)[:SEEDS]]
        shown = [Cell(f"{base:.3f} → {fisher:.3f}", fisher / base if base else None) for base, fisher in first]
        rows.append(
            (Cell(one.source), Cell(f"{better} of {len(pairs)}", better / max(1, len(pairs))), *shown)
            + (NOTHING,) * (SEEDS - len(shown))
        )
    ordinals = ("first seed", "second", "third", "fourth", "fifth")
    return Table(name, caption, ("source", "Fisher lower", *ordinals), tuple(rows))


def convex_verdict(found: list[Losses]) -> Verdict:
    """The paper's claim that the loss is lower on each of its five seeds."""
    judgements = []
    for one in found:
        parts = [
            Part(fisher < base, f"seed {seed}: {fisher:.3f} against {base:.3f}")
            for seed, (base, fisher) in one.pairs.items()
        ]
        missing = [Part(None, "a further seed")] * (SEEDS - len(parts))
        judgements.append(judge(one.source, [*parts, *missing], brief=len(parts) > SEEDS))
    return Verdict(
        "With convex layers the empirical Fisher lowers the loss on every seed.",
        "appendix, table on cvxpylayers",
        f"On each of at least {SEEDS} seeds the loss after the last step is lower with the Fisher.",
        tuple(judgements) or (judge("ours", []),),
    )
