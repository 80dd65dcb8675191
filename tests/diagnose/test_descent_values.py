"""The lines that are followed, in valleys ½ yᵀAy where the lowest point of a line has a closed form."""

import re

import pytest
import torch
from torch import Tensor

from newton_losses.diagnose import Report, diagnose

pytestmark = pytest.mark.usefixtures("quick_machine")


def slopes(condition: float) -> Tensor:
    return torch.tensor([1.0, condition], dtype=torch.float64)


def valley_outputs(condition: float) -> Tensor:
    """At the bottom of the valley: the slopes along it and across it are of one size."""
    drawn = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return drawn / slopes(condition)


def report_of(condition: float) -> Report:
    return diagnose(lambda y: y.square() @ slopes(condition).to(y) / 2, valley_outputs(condition))


def lowest(y: Tensor, rows: Tensor, weight: Tensor) -> float:
    """The minimum over s of the mean of ½(y − s d)ᵀA(y − s d)."""
    start, slope, bend = ((a * b) @ weight for a, b in ((y, y), (y, rows), (rows, rows)))
    return float(start.mean() / 2 - slope.mean().square() / (2 * bend.mean()))


def curvatures(condition: float) -> dict[str, Tensor]:
    gradient = valley_outputs(condition) * slopes(condition)
    return {"hessian": torch.diag(slopes(condition)), "fisher": gradient.mT @ gradient / len(gradient)}


@pytest.mark.parametrize("condition", [10.0, 100.0, 1e4])
def test_damping_is_a_multiple_of_the_eigenvalues_root_mean_square(condition: float) -> None:
    report = report_of(condition)
    exact = curvatures(condition)
    assert {candidate.curvature for candidate in report.descent.candidates} == set(exact)
    for candidate in report.descent.candidates:
        expected = candidate.factor * float(exact[candidate.curvature].norm()) / 2**0.5
        assert candidate.damping == pytest.approx(expected, rel=1e-9)
    chosen = report.recommendation
    assert chosen is not None
    expected = chosen.damping.factor * float(exact[chosen.curvature].norm()) / 2**0.5
    assert chosen.damping_here == pytest.approx(expected, rel=1e-9)
    assert f"{expected:.3g}" in str(report)


@pytest.mark.parametrize("condition", [10.0, 100.0])
def test_every_line_ends_at_its_lowest_point(condition: float) -> None:
    y, weight = valley_outputs(condition), slopes(condition)
    descent = report_of(condition).descent
    start = float((y.square() @ weight).mean() / 2)
    assert descent.start == pytest.approx(start)
    # A parabola is searched on a grid of ratios: within a percent of its depth.
    exact = lowest(y, y * weight, weight)
    assert exact <= descent.gradient.best * (1 + 1e-12)
    assert descent.gradient.best == pytest.approx(exact, abs=0.01 * (start - exact))
    for candidate in descent.candidates:
        damped = curvatures(condition)[candidate.curvature]
        damped = damped + candidate.damping * torch.eye(2, dtype=torch.float64)
        exact = lowest(y, torch.linalg.solve(damped, (y * weight).mT).mT, weight)
        assert exact <= candidate.line.best * (1 + 1e-12)
        assert candidate.line.best == pytest.approx(exact, abs=0.01 * (start - exact))


@pytest.mark.parametrize("condition", [100.0, 1e4])
def test_what_is_to_be_had_is_what_the_best_newton_direction_reaches(condition: float) -> None:
    """In a narrow valley not even several gradient steps come there."""
    descent = report_of(condition).descent
    newton = min(candidate.line.best for candidate in descent.candidates)
    assert newton < 0.6 * descent.gradient.best
    assert descent.best == newton
    assert descent.solved == pytest.approx((descent.start - descent.gradient.best) / (descent.start - newton))


def test_a_newton_step_solves_what_a_gradient_step_does_not() -> None:
    report = report_of(100.0)
    assert report.verdict == "yes"
    assert report.recommendation.curvature == "hessian"
    assert report.descent.gradient.best > 0.9 * report.descent.start
    assert report.descent.best < 0.01 * report.descent.start
    assert report.descent.solved < 0.1
    assert "does not solve it" in report.reasons[0]


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)]


@pytest.mark.parametrize("condition", [10.0, 100.0])
def test_the_gain_of_either_direction_is_told_for_that_one(condition: float) -> None:
    report = report_of(condition)
    chosen, descent = report.recommendation, report.descent
    (line,) = (
        candidate.line
        for candidate in descent.candidates
        if (candidate.curvature, candidate.factor) == (chosen.curvature, chosen.damping.factor)
    )
    newton, plain = descent.start - line.best, descent.start - descent.gradient.best
    assert newton > plain
    (reason,) = (reason for reason in report.reasons if "recommended direction" in reason)
    ours, _, theirs = reason.partition("gradient")
    assert numbers(ours)[0] == pytest.approx(newton, rel=5e-3)
    assert numbers(theirs)[0] == pytest.approx(plain, rel=5e-3)
    assert f"{newton:.3g}" != f"{plain:.3g}"
