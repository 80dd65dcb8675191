"""Every measurement against what it is by hand: gradient norms, noise, spectra, and the lines that are followed."""

import math

import pytest
import torch
from known_losses import absolute, cross_entropy, draw, honest_waves, squares, steep_ranks
from torch import Tensor

from newton_losses.curvature import Dense, LowRank, Products
from newton_losses.diagnose import Gradients, Noise, Report, diagnose
from newton_losses.diagnose._measurements import eigenvalues, measure_gradients, noise_ratio

# 101 norms k²: the 99th percentile is the hundredth of them, and neither the mean nor anything else is the median.
NORMS = [float(k * k) for k in range(1, 102)]


def gradients_with(norms: list[float]) -> Tensor:
    """Two outputs, all samples in the direction (3, 4)/5; not in the order of their norms."""
    shuffled = torch.randperm(len(norms), generator=torch.Generator().manual_seed(0))
    return torch.tensor(norms, dtype=torch.float64)[shuffled, None] * torch.tensor([0.6, 0.8], dtype=torch.float64)


def assert_known(found: Gradients) -> None:
    assert found.norms == pytest.approx(NORMS)
    assert (found.minimum, found.maximum) == pytest.approx((1.0, 101.0**2))
    assert found.median == pytest.approx(51.0**2)
    assert found.typical == pytest.approx(51.0**2)
    assert found.p99 == pytest.approx(100.0**2)
    assert found.ratio == pytest.approx(100.0**2 / 51.0**2)


def test_of_hand_made_gradients() -> None:
    assert_known(measure_gradients(torch.zeros(101), gradients_with(NORMS)))


def test_of_a_loss_with_these_gradients() -> None:
    """A linear loss: the gradient of a sample is its weight."""
    weight = gradients_with(NORMS)
    y = torch.randn(101, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    report = diagnose(lambda y, weight: (y * weight).sum(1), y, weight)
    assert report.gradients is not None
    assert_known(report.gradients)


def test_zeros_count_for_the_median_and_not_for_the_typical_norm() -> None:
    found = measure_gradients(torch.zeros(7), gradients_with([0.0, 0.0, 0.0, 0.0, 3.0, 5.0, 8.0]))
    assert (found.minimum, found.median, found.typical, found.maximum) == pytest.approx((0.0, 0.0, 5.0, 8.0))
    assert found.vanishing == pytest.approx(4 / 7)
    # The 99th percentile is 94 % of the way from the last but one to the last.
    assert found.p99 == pytest.approx(5.0 + 0.94 * 3.0)
    assert found.ratio == pytest.approx((5.0 + 0.94 * 3.0) / 5.0)


def test_vanishing_and_exploding_shares() -> None:
    gradient = torch.ones(10, 1)
    gradient[:2], gradient[2:3], gradient[3, 0] = 1e-4, 1e4, torch.nan
    found = measure_gradients(torch.zeros(10), gradient)
    assert (found.vanishing, found.exploding, found.nonfinite) == pytest.approx((2 / 9, 1 / 9, 0.1))


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
        assert noise_ratio(repeats) == pytest.approx(deviation, rel=0.05)
    assert Noise.more_samples(1.0) == 4


@pytest.mark.parametrize("shape", [(40, 5), (4, 9)], ids=["more samples than outputs", "fewer"])
def test_the_fisher_is_the_mean_of_outer_products(shape: tuple[int, int]) -> None:
    y, target = draw(*shape, seed=0).double(), draw(*shape, seed=1).double()
    gradient = 2 * (y - target)
    exact = torch.linalg.eigvalsh(sum(torch.outer(one, one) for one in gradient) / len(gradient))
    found = diagnose(squares, y, target).spectra.fisher
    assert found.values == pytest.approx(exact.tolist(), abs=1e-12 * float(exact[-1]))
    assert (found.smallest, found.largest) == (found.values[0], found.values[-1])
    assert found.rank == min(shape)
    assert found.condition == pytest.approx(float(exact[-1] / exact[-min(shape)]))
    assert found.negative_share == 0


def test_the_mean_hessian_and_its_negative_share() -> None:
    """(sin 2y − t)² + y²/20, output by output: f'' = 8 cos² 2y − 8 (sin 2y − t) sin 2y + 1/10."""
    y, target = draw(30, 4, seed=0).double(), draw(30, 4, seed=1).double()
    sine, cosine = torch.sin(2 * y), torch.cos(2 * y)
    second = 8 * cosine.square() - 8 * (sine - target) * sine + 0.1
    found = diagnose(honest_waves, y, target).spectra
    mean = second.mean(0).sort().values
    assert found.hessian.values == pytest.approx(mean.tolist(), rel=1e-9)
    assert found.hessian.negative_share == pytest.approx(float(mean.clamp(max=0).abs().sum() / mean.abs().sum()))


def bowls_and_hills(y: Tensor, sign: Tensor) -> Tensor:
    """½ sᵢ‖y‖²: of a sample with s = −1 every direction curves downwards, of the others none."""
    return sign * y.square().sum(1) / 2


@pytest.mark.parametrize("outputs", [4, 3000], ids=["Hessian stored", "too large for one"])
@pytest.mark.parametrize("hills", [0, 1, 4])
def test_samples_that_curve_downwards_are_counted(outputs: int, hills: int) -> None:
    sign = torch.ones(4)
    sign[4 - hills :] = -1
    report = diagnose(bowls_and_hills, draw(4, outputs, seed=0), sign)
    assert (report.spectra.hessian is None) == (outputs == 3000)
    assert report.spectra.convex is (hills == 0)
    assert report.spectra.nonconvex_samples == pytest.approx(hills / 4)
    assert report.spectra.negative_share == pytest.approx(hills / 4)


def test_a_large_saddle_is_not_convex() -> None:
    """A third of the outputs curves downwards, four times as much as the others curve upwards.

    So does every direction that is looked at: a random one by (2 − 4)/3 and the gradient by (2 − 64)/(2 + 16).
    """
    weight = torch.ones(3000)
    weight[::3] = -4
    y = torch.ones(4, 3000)
    report = diagnose(lambda y: (weight.to(y) * y.square()).sum(1) / 2, y)
    assert report.spectra.hessian is None
    assert report.spectra.convex is False
    assert report.spectra.negative_share == pytest.approx(1.0)


def test_a_piecewise_linear_loss_has_no_curvature() -> None:
    report = diagnose(absolute, draw(50, 4, seed=0), draw(50, 4, seed=1))
    assert report.spectra.flat
    assert "not smooth" in " ".join(report.reasons)
    assert report.recommendation is None or report.recommendation.curvature == "fisher"


def test_a_linear_loss_is_smooth() -> None:
    report = diagnose(lambda y, weight: (y * weight).sum(1), draw(20, 3, seed=0), draw(20, 3, seed=1))
    assert report.spectra.flat
    text = " ".join(report.reasons)
    assert "It is linear near these outputs" in text
    assert "not smooth" not in text


def test_curvatures_that_cancel_are_not_flat() -> None:
    """Half of the samples are pulled to their targets, the others pushed away: the mean Hessian is exactly zero."""
    y, target, sign = torch.randn(16, 3), torch.randn(16, 3), torch.tensor([1.0, -1.0]).repeat(8)
    report = diagnose(lambda y, target, sign: sign * (y - target).square().sum(1), y, target, sign)
    assert report.spectra.hessian.rank == 0
    assert not report.spectra.flat
    assert report.spectra.curved_samples == 1.0
    assert 0 < report.spectra.nonconvex_samples < 1
    text = " ".join(report.reasons)
    assert "piecewise linear" not in text
    assert "non-convex" in text
    assert "curvatures cancel" in text
    assert [one.curvature for one in report.descent.candidates] == ["fisher"]


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
def test_damping_is_the_root_mean_square_of_the_eigenvalues(condition: float) -> None:
    exact = curvatures(condition)
    candidates = report_of(condition).descent.candidates
    assert [candidate.curvature for candidate in candidates] == ["fisher", "hessian"]
    for candidate in candidates:
        assert candidate.damping == pytest.approx(float(exact[candidate.curvature].norm()) / 2**0.5, rel=1e-9)


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
        step = newton_steps(condition, candidate.curvature, candidate.damping)
        exact = lowest(y, step, weight)
        assert exact <= candidate.line.best * (1 + 1e-12)
        assert candidate.line.best == pytest.approx(exact, abs=0.01 * (start - exact))
        lead = (start - candidate.line.best) / (start - descent.gradient.best)
        assert descent.lead(candidate) == pytest.approx(lead)
        assert descent.lead(candidate) > 1  # a valley is what a Newton direction is made for


def newton_steps(condition: float, kind: str, damping: float) -> Tensor:
    damped = curvatures(condition)[kind] + damping * torch.eye(2, dtype=torch.float64)
    return torch.linalg.solve(damped, (valley_outputs(condition) * slopes(condition)).mT).mT


@pytest.mark.parametrize("condition", [10.0, 100.0])
def test_the_angle_and_the_clip_are_those_of_their_definitions(condition: float) -> None:
    gradient = valley_outputs(condition) * slopes(condition)
    norms = gradient.norm(dim=1)
    for candidate in report_of(condition).descent.candidates:
        step = newton_steps(condition, candidate.curvature, candidate.damping)
        cosine = float((step * gradient).sum() / (step.norm(dim=1) * norms).sum())
        assert candidate.turned == pytest.approx(math.degrees(math.acos(cosine)), rel=1e-6)
        factor = step.norm(dim=1) / norms
        largest = norms.sort().indices[-3:]
        assert candidate.clipped == pytest.approx(float(factor.median() / factor[largest].mean()), rel=1e-6)


def test_a_batch_smaller_than_its_outputs_is_clipped_sample_by_sample() -> None:
    """Orthogonal gradients: the step is gᵢ/ρ / (1 + ‖gᵢ‖²/(Nλ)), a sample's own part of the Fisher."""
    size = torch.arange(1.0, 11.0, dtype=torch.float64)
    weight = torch.diag(size)
    report = diagnose(lambda y, w: (y * w).sum(1) + 0 * y.square().sum(1), draw(10, 10, seed=0).double(), weight)
    (fisher,) = report.descent.candidates
    assert fisher.turned == pytest.approx(0, abs=1e-4)
    damping = float((size.pow(4) / 100).mean().sqrt())
    factor = 1 / (1 + size.square() / (10 * damping))
    assert fisher.clipped == pytest.approx(float(factor.median() / factor[-1]), rel=1e-6)
    assert report.descent.fades == pytest.approx(1.0)
    squares = size.square()
    assert report.descent.batches == pytest.approx(float(squares.std(correction=0) / squares.mean()) / 2 / 10**0.5)


def test_gradients_of_a_parabola_fade_and_those_of_a_cone_do_not() -> None:
    y = draw(64, 3, seed=0)
    assert diagnose(lambda y: y.square().sum(1), y).descent.fades < 0.05
    assert diagnose(lambda y: y.abs().sum(1), y).descent.fades == pytest.approx(1.0)


def test_gradients_of_a_parabola_grow_with_the_error_and_bounded_ones_do_not() -> None:
    y, target = draw(64, 3, seed=0), draw(64, 3, seed=1)
    # Uphill by the gradient itself, ten times as far as the targets are away and as far: errors become 11 and 2 times
    # as large, whether the targets are near or not.
    for far in (1, 100):
        assert diagnose(squares, y, far * target).descent.grows == pytest.approx(11 / 2, rel=0.05)
        assert diagnose(squares, y, target + far).descent.grows == pytest.approx(11 / 2, rel=0.05)
        assert diagnose(absolute, y, far * target).descent.grows == pytest.approx(1.0)
    # With the targets nearer than the outputs are spread, one and ten times that spread.
    spread = y.std(0, correction=0)
    near = y + 0.1 * spread * torch.randn(64, 3, generator=torch.Generator().manual_seed(2)).sign()
    assert diagnose(squares, y, near).descent.grows == pytest.approx(10.1 / 1.1, rel=0.05)
    assert diagnose(cross_entropy, y, target.argmax(1)).descent.grows < 1.6


@pytest.mark.parametrize("condition", [100.0, 1e4])
def test_what_is_to_be_had_is_what_the_best_newton_direction_reaches(condition: float) -> None:
    descent = report_of(condition).descent
    newton = min(candidate.line.best for candidate in descent.candidates)
    assert descent.best <= newton < descent.gradient.best
    assert descent.solved == pytest.approx((descent.start - descent.gradient.best) / (descent.start - descent.best))


@pytest.mark.parametrize("y", [torch.zeros(5, 2), torch.full((5, 2), 40.0)], ids=["minimum", "plateau"])
def test_where_no_step_leads_down(y: Tensor) -> None:
    report = diagnose(lambda y: -torch.exp(-y.square()).sum(1), y)
    assert report.verdict == "fix"
    assert "minimum or on a plateau" in report.reasons[0]


@pytest.mark.gpu
def test_on_a_device() -> None:
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    here, there = diagnose(steep_ranks, y, ranks), diagnose(steep_ranks, y.cuda(), ranks.cuda())
    assert here.verdict == there.verdict
    assert there.descent.start == pytest.approx(here.descent.start, rel=1e-12)
    assert there.descent.gradient.losses == pytest.approx(here.descent.gradient.losses, rel=1e-12)
    assert there.descent.gradient.best == pytest.approx(here.descent.gradient.best, rel=1e-12)
    # Every sample takes the lowest of several points, and far out this loss is flat, at whole numbers: there the last
    # bit sends a sample to one plateau or another. One ended two higher on an H200 than here.
    assert there.descent.best == pytest.approx(here.descent.best, abs=3 * 2 / 40)


def test_large_outputs_are_not_decomposed() -> None:
    report = diagnose(cross_entropy, draw(4, 3000, seed=0), draw(4, 3000, seed=1).argmax(1))
    assert report.verdict != "fix"
    assert report.derivatives.second == "expensive"
    assert report.spectra.convex
    assert report.spectra.fisher.rank == 4
