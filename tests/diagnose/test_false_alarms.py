"""What is no fault of a loss is not reported as one: kinks, ties, units, noise, detached weights, missing rules."""

from typing import Any

import pytest
import torch
from known_losses import absolute, cross_entropy, detached_weights, distance, draw, hinge, squares, staircase, vanishing
from torch import Tensor
from torch.nn import functional

from newton_losses.diagnose import diagnose
from newton_losses.sorting import SortingLoss


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("softsort", {"temperature": 0.1}), ("neuralsort", {"temperature": 1.0}), ("cauchy", {}), ("logistic", {})],
)
def test_tied_scores_are_not_a_wrong_gradient(algorithm: str, options: dict[str, float]) -> None:
    scores, values = torch.relu(draw(64, 6, seed=0)), draw(64, 6, seed=1)
    report = diagnose(SortingLoss(algorithm, **options), scores, values)
    assert report.verdict != "fix", str(report)
    assert report.derivatives.first == report.derivatives.second == "right"
    assert "backward" not in str(report)
    if algorithm == "softsort":  # of the absolute differences that it is made of
        assert report.derivatives.at_kinks > 0.5
        assert "right at them, at a tie for example" in " ".join(report.reasons)


@pytest.mark.parametrize("small", [1e-3, 1e-6])
def test_outputs_of_different_units(small: float) -> None:
    """Steps of finite differences follow the scale of each output."""
    unit = torch.tensor([small, 1.0, 1 / small])

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return torch.log1p(((y - target) / unit.to(y)) ** 2).sum(1)

    target = unit * draw(64, 3, seed=0)
    report = diagnose(loss, target + 0.5 * unit * draw(64, 3, seed=1), target)
    assert report.derivatives.first == report.derivatives.second == "right", str(report)
    assert report.derivatives.kinks == report.derivatives.jumps == 0
    assert report.descent.gradient.best < 0.9 * report.descent.start


def test_a_wrong_gradient_of_one_unit_among_others_is_still_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx: Any, outer: Tensor) -> Tensor:
            return 2.1 * outer * ctx.saved_tensors[0]

    unit = torch.tensor([1e-3, 1e3])
    y = unit * draw(64, 2, seed=0)
    report = diagnose(lambda y: Wrong.apply(y[:, 0] / 1e-3) + (y[:, 1] / 1e3).square(), y)
    assert report.derivatives.first == "wrong"
    assert "Wrong" in report.reasons[0]


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_not_taken_for_descent(seed: int) -> None:
    """The loss is positive in expectation; a single draw of it can have any sign."""

    def noisy(y: Tensor) -> Tensor:
        return 1 + 0.1 * y.square().sum(1) + (5 * torch.randn(y.shape, dtype=y.dtype) * (1 + torch.sin(9 * y))).sum(1)

    report = diagnose(noisy, draw(64, 3, seed=seed))
    # The mean of eight fresh draws for 64 samples has a standard error of about half.
    assert report.descent.best > -1.5
    assert report.descent.gradient.best <= report.descent.start
    for candidate in report.descent.candidates:
        assert candidate.line.best <= report.descent.start


def test_a_line_is_searched_with_one_draw_and_judged_by_others() -> None:
    seeds: set[int] = set()

    def noisy(y: Tensor) -> Tensor:
        seeds.add(torch.initial_seed())
        return (y + 0.1 * torch.randn(y.shape, dtype=y.dtype)).square().sum(1)

    report = diagnose(noisy, draw(64, 3, seed=0))
    assert len(seeds) > 8
    # The line ends where that one draw vanishes; other draws add their own variance to that of the first, 0.03 each.
    assert 0.05 < report.descent.gradient.best < 0.15


def straight_through(y: Tensor, target: Tensor) -> Tensor:
    return (y + (torch.tanh(3 * y) - y).detach() - target).square().sum(1)


def without_gradients(y: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        weight = torch.softmax(y, 1)
    return (weight * (y - target).square()).sum(1)


@pytest.mark.parametrize(
    ("loss", "cut"),
    [(detached_weights, ".detach()"), (straight_through, ".detach()"), (without_gradients, "torch.no_grad()")],
)
def test_a_detached_part_is_named_and_not_called_wrong(loss: Any, cut: str) -> None:
    report = diagnose(loss, draw(64, 5, seed=0), draw(64, 5, seed=1))
    assert report.derivatives.first == "detached"
    assert cut in report.derivatives.cuts
    assert report.verdict == "open"
    text = " ".join(report.reasons)
    assert cut in text
    assert "LambdaLoss" in text
    assert "wrong:" not in text


def test_a_detached_part_that_does_no_harm_is_not_mentioned() -> None:
    report = diagnose(lambda y, t: (y - t).square().sum(1) + (y - y.detach()).sum(1) * 0, draw(9, 3, seed=0), 0.0)
    assert report.derivatives.first == "right"
    assert "detach" not in str(report)


@pytest.mark.parametrize(
    ("loss", "jumps", "kinks"),
    [(squares, False, False), (absolute, False, True), (hinge, False, True), (staircase, True, False)],
)
def test_jumps_and_kinks_are_named(loss: Any, jumps: bool, kinks: bool) -> None:
    report = diagnose(loss, draw(64, 5, seed=0), draw(64, 5, seed=1))
    assert (report.derivatives.jumps > 0) == jumps
    assert (report.derivatives.kinks > 0) == kinks
    assert ("not smooth" in " ".join(report.reasons)) == (jumps or kinks)


def test_steep_is_not_a_jump() -> None:
    report = diagnose(lambda y: torch.sigmoid(200 * y).sum(1) + y.square().sum(1), draw(64, 5, seed=0))
    assert (report.derivatives.jumps, report.derivatives.kinks) == (0, 0)


def test_a_missing_rule_is_not_a_missing_derivative() -> None:
    report = diagnose(distance, draw(64, 3, seed=0), draw(64, 3, seed=1))
    assert report.derivatives.second == "missing"
    text = " ".join(report.reasons)
    assert "no rule for the second derivative of cdist" in text
    assert "use_mm_for_euclid_dist" in text
    assert "lacks" not in text
    assert report.spectra.convex  # of the norm of a difference, without any Hessian
    hinted = diagnose(
        lambda y, t: torch.cdist(y[:, None], t[:, None], compute_mode="use_mm_for_euclid_dist")[:, 0, 0],
        draw(64, 3, seed=0),
        draw(64, 3, seed=1),
    )
    assert hinted.derivatives.second == "right"


def soft_labels(y: Tensor, target: Tensor) -> Tensor:
    return -(torch.softmax(target, 1) * torch.log_softmax(y, 1)).sum(1)


@pytest.mark.parametrize("loss", [soft_labels, absolute])
def test_what_training_did_not_gain_from_is_not_recommended(loss: Any) -> None:
    for seed in range(3):
        report = diagnose(loss, draw(64, 5, seed=seed), draw(64, 5, seed=seed + 9))
        assert report.verdict == "open", str(report)
        assert report.recommendation is None
        assert "worth trying" not in str(report).lower()


KINKED = {
    "hinge": lambda y, t: (1 - y * t.sign()).relu().sum(1),
    "absolute": lambda y, t: (y - t).abs().sum(1),
    "largest": lambda y, t: y.max(1).values - y.min(1).values + (y - t).abs().amax(1),
    "sorted": lambda y, t: (y.sort(1).values - t).abs().sum(1),
    "smoothed absolute": lambda y, t: functional.smooth_l1_loss(y, t, reduction="none", beta=1e-3).sum(1),
    "triplet": lambda y, t: (0.2 + (y - t).norm(dim=1) - (y + t).norm(dim=1)).relu(),
}


@pytest.mark.parametrize("name", KINKED)
@pytest.mark.parametrize("where", ["random", "at kinks", "near kinks"])
def test_kinks_are_not_taken_for_a_wrong_gradient(name: str, where: str) -> None:
    target = draw(100, 5, seed=1)
    y = {
        "random": draw(100, 5, seed=0),
        "at kinks": target.round(),  # many ties, margins of exactly one, and some at the target
        "near kinks": target.sign() + 1e-4 * draw(100, 5, seed=2),
    }[where]
    if where == "at kinks":
        target[:3] = y[:3]
    report = diagnose(KINKED[name], y, target)
    assert report.derivatives.wrong_samples == 0
    assert report.derivatives.first == "right"


@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
@pytest.mark.parametrize("loss", [cross_entropy, vanishing], ids=["cross-entropy", "saturated"])
def test_vanished_gradients_are_not_called_wrong(loss: Any, scale: float) -> None:
    """Their slopes are below the rounding of the values that they are compared with."""
    for seed in range(3):
        y, labels = draw(100, 6, seed=seed, scale=scale), draw(100, 6, seed=seed + 50).argmax(1)
        assert diagnose(loss, y, labels).derivatives.first == "right"
