"""The single measurements against what they should be by hand, and inputs of all shapes."""

import pytest
import torch
from catalogue import absolute, cross_entropy, draw, half_cut_second, smoothed, squares, steep_ranks
from torch import Tensor, nn

from newton_losses import ArgumentError, Expansion, ShapeError, expand
from newton_losses.curvature import Dense, LowRank, Products
from newton_losses.diagnose import _cost, diagnose
from newton_losses.diagnose._derivatives import judged
from newton_losses.diagnose._gradients import measure_gradients
from newton_losses.diagnose._noise import Noise, _ratio
from newton_losses.diagnose._spectrum import eigenvalues


@pytest.mark.parametrize(
    "y", [draw(1, 3, seed=0), draw(7, seed=0), draw(6, 2, 3, seed=0), draw(8, 3, seed=0).double(),
          draw(8, 3, seed=0).bfloat16(), draw(8, 3, seed=0).requires_grad_(), torch.zeros(5, 2)],
    ids=["one sample", "no output dimension", "images", "float64", "bfloat16", "with graph", "all equal"],
)  # fmt: skip
def test_shapes_and_dtypes(y: Tensor) -> None:
    def loss(y: Tensor, target: Tensor) -> Tensor:
        return (y - target).reshape(len(y), -1).square().sum(1)

    report = diagnose(loss, y, torch.ones_like(y).detach())
    assert report.verdict == "no"
    assert report.outputs == y.numel() // len(y)
    assert report.samples == len(y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reduced_losses(reduction: str) -> None:
    y, target = draw(20, 3, seed=0), draw(20, 3, seed=1)
    report = diagnose(getattr(nn, "MSELoss")(reduction=reduction), y, target)  # noqa: B009
    assert report.verdict == "no"
    assert report.derivatives.first == report.derivatives.second == "right"
    exact = expand(nn.MSELoss(reduction=reduction), y.double(), target.double())
    assert report.spectra.hessian.largest == pytest.approx(float(exact.curvature.dense()[0, 0]))


def test_mistakes_of_the_caller_raise() -> None:
    with pytest.raises(ShapeError, match="one value per sample"):
        diagnose(lambda y: y, torch.randn(4, 3))
    with pytest.raises(ArgumentError, match="samples to measure at"):
        diagnose(squares, torch.randn(0, 3), torch.randn(0, 3))
    with pytest.raises(ArgumentError, match="floating"):
        diagnose(squares, torch.arange(6).reshape(2, 3), torch.zeros(2, 3))


def test_nothing_is_disturbed() -> None:
    loss = smoothed(4)
    y, ranks = draw(10, 5, seed=0), draw(10, 5, seed=1).argsort(1).argsort(1)
    before, own = torch.get_rng_state(), loss.generator.get_state()
    diagnose(loss, y, ranks)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(loss.generator.get_state(), own)
    assert y.grad is None


def test_a_piecewise_linear_loss_has_no_curvature() -> None:
    report = diagnose(absolute, draw(50, 4, seed=0), draw(50, 4, seed=1))
    assert report.spectra.flat
    assert "not smooth" in " ".join(report.reasons)
    assert report.recommendation is None or report.recommendation.curvature == "fisher"


def test_a_module_with_weights_is_compared_in_both_precisions() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.eye(3))

        def forward(self, y: Tensor, target: Tensor) -> Tensor:
            return ((y - target) @ self.weight).square().sum(1)

    loss = Weighted()
    report = diagnose(loss, draw(10, 3, seed=0), draw(10, 3, seed=1))
    assert report.precision is not None
    assert loss.weight.dtype == torch.float32


def test_without_float64_the_checks_are_left_out() -> None:
    weight = torch.eye(3)
    report = diagnose(lambda y: (y @ weight).square().sum(1), draw(10, 3, seed=0))
    assert report.precision is None
    assert report.derivatives.first == report.derivatives.second == "unchecked"
    assert report.verdict == "no"


def test_samples_that_are_not_finite_are_told() -> None:
    def loss(y: Tensor) -> Tensor:
        return (y * y.sqrt()).sum(1) + torch.sin(3 * y).sum(1)

    y = draw(40, 3, seed=0).abs()
    y[:10] = -1
    report = diagnose(loss, y)
    assert report.verdict == "fix"
    assert "25% of the samples have no finite loss" in report.reasons[0]


def test_a_loss_that_only_expands() -> None:
    class Bowl:
        def expand(self, y: Tensor, *targets: Tensor, curvature: str | None) -> Expansion:
            matrix = None if curvature is None else torch.eye(y.shape[1], dtype=y.dtype) * 2
            return Expansion(y.square().sum(1), 2 * y, matrix)

    report = diagnose(Bowl(), draw(12, 3, seed=0))
    assert report.verdict == "no"
    assert report.derivatives.second == "right"


def test_a_brought_hessian_that_is_wrong() -> None:
    class Crooked:
        def expand(self, y: Tensor, *targets: Tensor, curvature: str | None) -> Expansion:
            matrix = None if curvature is None else torch.eye(y.shape[1], dtype=y.dtype)
            return Expansion((y.square() + torch.cos(3 * y)).sum(1), 2 * y - 3 * torch.sin(3 * y), matrix)

    report = diagnose(Crooked(), draw(12, 3, seed=0))
    assert report.derivatives.first == "right"
    assert report.derivatives.second == "wrong"


def test_eigenvalues_in_every_form() -> None:
    factor = draw(4, 9, seed=0).double()
    whole = eigenvalues(Dense(factor.mT @ factor))
    for form in (LowRank(factor), Products(lambda rows: rows @ factor.mT @ factor, 9, factor)):
        found = eigenvalues(form)
        assert found.largest == pytest.approx(whole.largest, rel=1e-9)
        assert found.rank == whole.rank == 4
        assert found.condition == pytest.approx(whole.condition, rel=1e-6)


def test_noise_ratio_is_that_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    signal = torch.ones(2000)
    for deviation in (0.1, 1.0, 3.0):
        repeats = signal + deviation * torch.randn(12, 2000, generator=generator)
        # The standard error of a variance from 12 × 2000 draws is one percent.
        assert _ratio(repeats) == pytest.approx(deviation, rel=0.05)
    assert Noise.more_samples(1.0) == 4


def test_a_clock_that_is_too_coarse_for_the_loss(monkeypatch) -> None:
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    report = diagnose(squares, draw(8, 3, seed=0), draw(8, 3, seed=1))
    assert report.cost.value > 0
    assert "loss 1e-06 ms; with gradient 1.0 times that" in str(report)


def test_what_a_coarse_clock_counts_is_shared_among_the_calls(monkeypatch) -> None:
    ticks = iter([0.0, 0.0, 0.015, 0.0, 0.045])
    monkeypatch.setattr(_cost, "timed", lambda call, device: (None, next(ticks)))
    assert _cost.seconds(lambda: None, torch.device("cpu")) == pytest.approx(0.06 / 5)


def test_vanishing_and_exploding_shares() -> None:
    gradient = torch.ones(10, 1)
    gradient[:2], gradient[2:3], gradient[3, 0] = 1e-4, 1e4, torch.nan
    found = measure_gradients(torch.zeros(10), gradient)
    assert (found.vanishing, found.exploding, found.nonfinite) == pytest.approx((2 / 9, 1 / 9, 0.1))


def test_forward_mode_names_the_operator() -> None:
    report = diagnose(half_cut_second, draw(10, 3, seed=0), draw(10, 3, seed=1))
    assert report.derivatives.forward is False
    assert report.derivatives.operator == "_OldSine"


def test_the_picture(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    for number, report in enumerate(
        (diagnose(steep_ranks, y, ranks), diagnose(lambda y: (y - y.mean(0)).square().sum(1), y))
    ):
        path = tmp_path / f"{number}.png"
        report.plot(path)
        assert path.stat().st_size > 10_000


@pytest.mark.parametrize("y", [torch.zeros(5, 2), torch.full((5, 2), 40.0)], ids=["minimum", "plateau"])
def test_where_no_step_leads_down(y: Tensor) -> None:
    report = diagnose(lambda y: -torch.exp(-y.square()).sum(1), y)
    assert report.verdict == "fix"
    assert "minimum or on a plateau" in report.reasons[0]


@pytest.mark.gpu
def test_on_a_device() -> None:
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    here, there = diagnose(steep_ranks, y, ranks), diagnose(steep_ranks, y.cuda(), ranks.cuda())
    assert here.verdict == there.verdict == "yes"
    assert there.descent.start == pytest.approx(here.descent.start, rel=1e-12)
    assert there.descent.gradient.losses == pytest.approx(here.descent.gradient.losses, rel=1e-12)
    assert there.descent.gradient.best == pytest.approx(here.descent.gradient.best, rel=1e-12)
    # Every sample takes the lowest of several points, and far out this loss is flat, at whole numbers: there the last
    # bit sends a sample to one plateau or another. One ended two higher on an H200 than here.
    assert there.descent.best == pytest.approx(here.descent.best, abs=3 * 2 / 40)


def test_large_outputs_are_not_decomposed() -> None:
    report = diagnose(cross_entropy, draw(4, 3000, seed=0), draw(4, 3000, seed=1).argmax(1))
    assert report.verdict == "no"
    assert report.derivatives.second == "expensive"
    assert report.spectra.convex
    assert report.spectra.fisher.rank == 4


def test_what_could_not_be_compared_is_not_called_right() -> None:
    assert [judged(error) for error in (0.0, 0.5, float("nan"))] == ["right", "wrong", "unchecked"]
