"""How far does one step lead? The loss along the gradient, and along Newton directions of several dampings.

A direction is judged by the best point on its line, so that its length plays no part: the optimiser of the
network brings a length of its own.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..curvature import CurvatureKind, Expansion, NormalizedDamping, newton_step
from ._probe import Probe, is_reduced, mean_finite


@dataclass(frozen=True)
class Plan:
    """Where to look: root-mean-square moves along a line, in units of the outputs' spread; factors for a finer
    search around the best of them; moves of a sample in each of several rounds; dampings to try."""

    moves: tuple[float, ...]
    finer: tuple[float, ...]
    lengths: tuple[float, ...]
    rounds: int
    factors: tuple[float, ...]

    @property
    def calls(self) -> int:
        """How often values are asked for, about; a gradient counts as three."""
        lines = (1 + 2 * len(self.factors)) * (len(self.moves) + len(self.finer))
        return lines + self.rounds * (len(self.lengths) + 3)


THOROUGH = Plan(
    moves=tuple(10.0 ** (k / 3) for k in range(-9, 10)),
    # A grid alone can miss the minimum of a parabola by a tenth of its depth.
    finer=tuple(10.0 ** (k / 40) for k in (-10, -6, -3, -1, 1, 3, 6, 10)),
    lengths=tuple(10.0**k for k in (-2.0, -1.25, -0.5, 0.0, 0.5, 1.0)),
    rounds=8,
    factors=(0.01, 0.1, 1.0, 10.0),
)
# For losses of which a few dozen values already take seconds.
BRIEF = Plan(tuple(10.0 ** (k / 2) for k in range(-4, 3)), (), (0.1, 0.6, 3.0), rounds=2, factors=(1.0,))


@dataclass(frozen=True)
class Line:
    """Mean losses at moves along one direction; `best` is the lowest, found by a finer search around it."""

    name: str
    moves: tuple[float, ...]
    losses: tuple[float, ...]
    best: float


@dataclass(frozen=True)
class Candidate:
    """One Newton direction: its curvature, the factor of `NormalizedDamping`, λ here, and where its line leads."""

    curvature: CurvatureKind
    factor: float
    damping: float
    line: Line


@dataclass(frozen=True)
class Descent:
    """`solved` is the share of the decrease start − best that the best single gradient step reaches; not a number
    where there is no decrease.

    `best` is the lowest mean loss that anything here came to: a line, or several gradient steps, each sample with
    its own lengths; `samples` is how many all this is from.
    """

    start: float
    best: float
    solved: float
    gradient: Line
    candidates: tuple[Candidate, ...]
    samples: int


def measure_descent(probe: Probe, expansions: dict[CurvatureKind, Expansion], plan: Plan = THOROUGH) -> Descent:
    """At the outputs of `probe`, all with finite values, with the expansions of them that can be trusted."""
    plain = next(iter(expansions.values())).gradient
    start = mean_finite(probe.values(probe.flat))
    gradient = _from(start, follow(probe, plain, plan, "gradient"))
    candidates = tuple(
        _candidate(probe, kind, expansion, plan, factor, start)
        for kind, expansion in expansions.items()
        for factor in plan.factors
    )
    # In a narrow valley several gradient steps come hardly further than one, and a Newton direction does.
    best = min(gradient.best, _several_steps(probe, plan), *(candidate.line.best for candidate in candidates))
    decrease = start - best
    return Descent(
        start=start,
        best=best,
        solved=(start - gradient.best) / decrease if decrease > 1e-12 * abs(start) else float("nan"),
        gradient=gradient,
        candidates=candidates,
        samples=probe.count,
    )


def follow(probe: Probe, rows: Tensor, plan: Plan, name: str) -> Line:
    """Mean losses along −rows, with one length for the whole batch, as a gradient step has."""
    rows = torch.where(torch.isfinite(rows), rows, 0.0)
    length = float(rows.double().square().mean().sqrt())
    unit = rows / length * probe.spread if length > 0 else rows

    def at(move: float) -> float:
        values = probe.values(probe.flat - move * unit)
        return mean_finite(values) if bool(torch.isfinite(values).all()) else float("inf")

    losses = tuple(at(move) for move in plan.moves)
    lowest = min(range(len(losses)), key=losses.__getitem__)
    finer = (at(plan.moves[lowest] * factor) for factor in plan.finer)
    return Line(name, plan.moves, losses, min(losses[lowest], *finer, float("inf")))


def _from(start: float, line: Line) -> Line:
    """A line on which every move is too long still has its start."""
    return replace(line, best=min(line.best, start))


def _candidate(
    probe: Probe, kind: CurvatureKind, expansion: Expansion, plan: Plan, factor: float, start: float
) -> Candidate:
    rule = NormalizedDamping(factor)
    if kind == "hessian":  # of products, the scale and the signs of the eigenvalues would be estimates
        expansion = replace(expansion, curvature=_dense(expansion))
    step = newton_step(expansion, rule)
    line = _from(start, follow(probe, step.rows, plan, f"{kind}, factor {factor:g}"))
    return Candidate(kind, factor, float(rule(expansion).damping), line)


def _dense(expansion: Expansion) -> Tensor:
    assert expansion.curvature is not None
    return expansion.curvature if isinstance(expansion.curvature, Tensor) else expansion.curvature.dense()


def _several_steps(probe: Probe, plan: Plan) -> float:
    """Steepest descent in which every sample chooses the best of several lengths, round after round."""
    here = probe.flat
    values = probe.values(here)
    for _ in range(plan.rounds):
        gradient = torch.nan_to_num(probe.gradient(here), nan=0.0, posinf=0.0, neginf=0.0)
        norm = gradient.square().mean(1, keepdim=True).sqrt()
        # A vanished gradient stays: 0/0 would hand NaN to the loss, and a solver in it may refuse that.
        unit = gradient / norm.clamp(min=torch.finfo(norm.dtype).tiny) * probe.spread
        for length in plan.lengths:
            there = here - length * unit
            reached = probe.values(there)
            lower = reached < values
            if is_reduced(reached):
                lower = lower[:1]
            here = torch.where(lower[:, None], there, here)
            values = torch.where(lower, reached, values)
    return mean_finite(values)
