"""What a Newton loss would do here: the loss along the gradient and along Newton directions, and the three effects.

A direction is judged by the best point on its line, so that its length plays no part: the optimizer of the network sets
its own. Of a loss that draws noise, lines are searched with one draw and what they lead to is judged by fresh ones.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..curvature import CurvatureKind, Dense, Expansion, NormalizedDamping, finite, newton_step
from ._probe import Probe, curvature_of, is_reduced, mean_finite

# Root-mean-square moves along a line, in units of each output's scale, and factors for a finer search around the best:
# a grid alone can miss the minimum of a parabola by a tenth of its depth.
MOVES = tuple(10.0 ** (k / 3) for k in range(-9, 10))
FINER = tuple(10.0 ** (k / 40) for k in (-10, -6, -3, -1, 1, 3, 6, 10))
# Steepest descent in which each sample chooses its own lengths.
LENGTHS, ROUNDS = tuple(10.0**k for k in (-2.0, -1.25, -0.5, 0.0, 0.5, 1.0)), 8
# Moves uphill between which the growth of the gradients is measured: a squared error's grow nearly tenfold.
NEAR, FAR = 1.0, 10.0
# Draws that judge what was found with another one.
FRESH = 8


@dataclass(frozen=True)
class Line:
    """Mean losses at moves along one direction; `best` is the lowest, found by a finer search around it."""

    name: str
    moves: tuple[float, ...]
    losses: tuple[float, ...]
    best: float


@dataclass(frozen=True)
class Candidate:
    """One Newton direction with the default damping: its curvature, λ here, where its line leads, and what it does.

    - `turned`: the angle between steps and gradients in degrees, over all samples.
    - `clipped`: how much more the steps of the tenth with the largest gradients are shortened than those of the median.
    """

    curvature: CurvatureKind
    damping: float
    line: Line
    turned: float
    clipped: float


@dataclass(frozen=True)
class Descent:
    """Where single steps lead on the outputs, and what a Newton loss would change about them.

    - `start`: the mean loss at the outputs; `best`: the lowest that anything here came to, a line or several gradient
      steps in which each sample has its own lengths.
    - `solved`: the share of start − best that the best single gradient step takes; NaN where nothing leads down.
    - `batches`: by how much the root mean square ρ of the gradients differs from batch to batch, relative to ρ, if
      batches are as large as this one: what a normalised step evens out.
    - `fades`: ρ at the lowest point along the gradient, relative to ρ at the outputs. A plain gradient gets shorter as
      the loss falls; a normalised one does not.
    - `grows`: ρ ten units uphill, relative to ρ one unit uphill. A unit is the scale of the outputs, or how far the
      lowest point along the gradient is away if that is more. A bounded gradient, as that of a cross-entropy or an
      absolute error, does not grow with the error.
    - `candidates`: one Newton direction for each curvature that can be trusted; `samples`: how many all this is from.
    """

    start: float
    best: float
    solved: float
    batches: float
    fades: float
    grows: float
    gradient: Line
    candidates: tuple[Candidate, ...]
    samples: int

    def lead(self, candidate: Candidate) -> float:
        """The decrease along a Newton direction, relative to that along the gradient."""
        plain = self.start - self.gradient.best
        return (self.start - candidate.line.best) / plain if plain > 0 else math.nan


def measure_descent(probe: Probe, expansions: dict[CurvatureKind, Expansion], *, noisy: bool) -> Descent:
    """At the outputs of `probe`, all with finite values, with the expansions of them that can be trusted."""
    gradient = next(iter(expansions.values())).gradient
    start = _judged(probe, probe.flat, noisy=noisy)
    plain, lowest = _follow(probe, gradient, "gradient", start, noisy=noisy)
    candidates = tuple(_candidate(probe, *pair, start, noisy=noisy) for pair in expansions.items())
    several = _judged(probe, _several_steps(probe), noisy=noisy)
    # In a narrow valley several gradient steps come hardly further than one, and a Newton direction does.
    best = min(plain.best, several, *(candidate.line.best for candidate in candidates))
    decrease = start - best
    squares = gradient[finite(next(iter(expansions.values())))].double().square().mean(1)
    after = probe.gradient(lowest).double().square().mean(1)
    return Descent(
        start=start,
        best=best,
        solved=(start - plain.best) / decrease if decrease > 1e-12 * abs(start) else math.nan,
        # ρ² is a mean of N independent terms, and ρ varies half as much as its square.
        batches=_relative_deviation(squares) / 2 / math.sqrt(len(squares)),
        fades=math.sqrt(mean_finite(after) / float(squares.mean())) if float(squares.mean()) > 0 else math.nan,
        grows=_growth(probe, gradient, lowest),
        gradient=plain,
        candidates=candidates,
        samples=probe.count,
    )


def _relative_deviation(squares: Tensor) -> float:
    mean = float(squares.mean())
    return float(squares.std(correction=0)) / mean if mean > 0 else 0.0


def _growth(probe: Probe, rows: Tensor, lowest: Tensor) -> float:
    # Seen from far above the minimum, ten units make no difference to the gradients of a squared error.
    away = float(((probe.flat - lowest) / probe.scale).double().square().mean().sqrt())
    unit = _unit(probe, rows) * max(1.0, away)
    near, far = (probe.gradient(probe.flat + move * unit).double().square().mean() for move in (NEAR, FAR))
    ratio = float((far / near).sqrt())
    return ratio if math.isfinite(ratio) else math.inf


def _unit(probe: Probe, rows: Tensor) -> Tensor:
    """Rows `(N, m)` of a root mean square of one, in units of each output's scale."""
    rows = torch.where(torch.isfinite(rows), rows, 0.0)
    # The square of a large gradient may be no number any more.
    largest = float((rows / probe.scale).abs().amax())
    rows = rows / largest if largest > 0 else rows
    length = float((rows / probe.scale).double().square().mean().sqrt())
    return rows / length if length > 0 else rows


def _judged(probe: Probe, flat: Tensor, *, noisy: bool) -> float:
    """The mean loss at these outputs: of a loss that draws noise, over draws that nothing was chosen by."""
    if not noisy:
        return mean_finite(probe.values(flat))
    found = torch.stack([replace(probe, seed=1000 + draw).values(flat) for draw in range(FRESH)])
    return mean_finite(found.mean(0))


def _follow(probe: Probe, rows: Tensor, name: str, start: float, *, noisy: bool) -> tuple[Line, Tensor]:
    """Mean losses along −rows, with one length for the whole batch, as a gradient step has; and the best outputs."""
    unit = _unit(probe, rows)

    def at(move: float) -> float:
        values = probe.values(probe.flat - move * unit)
        return mean_finite(values) if bool(torch.isfinite(values).all()) else math.inf

    losses = tuple(at(move) for move in MOVES)
    coarse = MOVES[min(range(len(losses)), key=losses.__getitem__)]
    tried = {coarse: min(losses)} | {coarse * factor: at(coarse * factor) for factor in FINER}
    move = min(tried, key=tried.__getitem__)
    there = probe.flat - move * unit
    reached = _judged(probe, there, noisy=True) if noisy else tried[move]
    if not reached < start:  # a line on which every move is too long still has its start
        there, reached = probe.flat, start
    return Line(name, MOVES, losses, reached), there


def _candidate(probe: Probe, kind: CurvatureKind, expansion: Expansion, start: float, *, noisy: bool) -> Candidate:
    rule = NormalizedDamping()
    if kind == "hessian":  # of products, the scale and the signs of the eigenvalues would be estimates
        expansion = replace(expansion, curvature=Dense(curvature_of(expansion).dense()))
    rows = newton_step(expansion, rule).rows
    line, _ = _follow(probe, rows, kind, start, noisy=noisy)
    turned, clipped = _turned_and_clipped(rows.double(), expansion.gradient.double())
    return Candidate(kind, float(rule(expansion).damping), line, turned, clipped)


def _turned_and_clipped(steps: Tensor, gradient: Tensor) -> tuple[float, float]:
    """The angle between steps and gradients `(N, m)`, and how unevenly samples are shortened."""
    norms, lengths = gradient.norm(dim=1), steps.norm(dim=1)
    usable = torch.isfinite(norms) & (norms > 0) & (lengths > 0)
    if not bool(usable.any()):
        return math.nan, math.nan
    steps, gradient, norms, lengths = steps[usable], gradient[usable], norms[usable], lengths[usable]
    cosine = float((steps * gradient).sum() / (norms * lengths).sum())
    factors, largest = lengths / norms, norms >= norms.quantile(0.9)
    clipped = float(factors.median() / factors[largest].mean())
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine)))), clipped


def _several_steps(probe: Probe) -> Tensor:
    """Where steepest descent ends `(N, m)` if every sample chooses the best of several lengths, round after round."""
    here = probe.flat
    values = probe.values(here)
    for _ in range(ROUNDS):
        gradient = torch.nan_to_num(probe.gradient(here), nan=0.0, posinf=0.0, neginf=0.0) * probe.scale
        norm = gradient.square().mean(1, keepdim=True).sqrt()
        # A vanished gradient stays: 0/0 would hand NaN to the loss, and a solver in it may refuse that.
        unit = gradient / norm.clamp(min=torch.finfo(norm.dtype).tiny) * probe.scale
        for length in LENGTHS:
            there = here - length * unit
            reached = probe.values(there)
            lower = reached < values
            if is_reduced(reached):
                lower = lower[:1]
            here = torch.where(lower[:, None], there, here)
            values = torch.where(lower, reached, values)
    return here
