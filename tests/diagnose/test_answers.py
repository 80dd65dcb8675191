"""Every loss of the catalogue is recognised, and the same input gets the same answer."""

import json
import pickle
import random
import time
from typing import Any

import numpy
import pytest
import torch
from known_losses import Known, absolute, catalogue, cross_entropy, draw, smoothed, squares, steep_ranks
from torch import Tensor

from newton_losses.diagnose import diagnose
from newton_losses.sorting import SortingLoss

KNOWN = catalogue()


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_answer(known: Known) -> None:
    report = diagnose(known.loss, known.y, *known.targets)
    assert (report.verdict == "fix") == known.faulty, str(report)
    assert report.verdict == "open" or report.recommendation is None
    text = " ".join(report.reasons)
    for words in known.words:
        assert words in text
    assert all(reason.split()[0] in str(report) for reason in report.reasons)
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_convex_losses_at_other_outputs(seed: int, scale: float) -> None:
    y, labels = draw(64, 4, seed=seed, scale=scale), draw(64, 4, seed=seed + 100).argmax(1)
    for report in (
        diagnose(squares, y, draw(64, 4, seed=seed + 200)),
        diagnose(torch.nn.functional.mse_loss, y, draw(64, 4, seed=seed + 200), reduction="mean"),
        diagnose(cross_entropy, y, labels),
    ):
        assert report.verdict != "fix", str(report)
        assert report.spectra is not None
        assert report.spectra.convex
        assert report.descent.solved > 0.95


def test_a_recommendation_can_be_used() -> None:
    y = draw(30, 3, seed=0).requires_grad_()
    report = diagnose(squares, y, draw(30, 3, seed=1))
    assert report.verdict == "open"
    assert str(report.recommendation) in str(report)
    import newton_losses as nl

    newton = eval(str(report.recommendation), {"nl": nl, "loss": squares})
    newton(y, draw(30, 3, seed=1)).backward()
    assert torch.isfinite(y.grad).all()


def test_what_is_expected_follows_growth_and_lead() -> None:
    """Gradients that grow with the error, or a direction that leads further down: else nothing is recommended."""
    y, target = draw(64, 4, seed=0), draw(64, 4, seed=1)
    unit = torch.tensor([0.3, 0.6, 1.5, 3.0])
    for loss, outputs, wanted, words in (
        (
            squares,
            y,
            target,
            "should help: the loss's gradients grow with the error (the Fisher's direction leads no",
        ),
        (
            cauchy_in(unit),
            unit * y,
            unit * target,
            "leads further down than the gradient (the loss's gradients do not grow with the error)",
        ),
        (
            absolute,
            y,
            target,
            "should make no difference: the loss's gradients do not grow with the error, and the",
        ),
    ):
        report = diagnose(loss, outputs, wanted)
        assert words in report.reasons[0]
        assert report.verdict == "open"
        assert report.expected == ("no difference" if "no difference" in words else "helps")
        assert (report.recommendation is None) == ("and" in words)
        assert f"should {'make no difference' if 'and' in words else 'help'}" in report.reasons[0]


def test_one_output_is_told_that_its_curvature_is_one_number() -> None:
    """Whatever the gradients do: a Fisher of one output and its λ are the same number, and nothing is recommended."""
    report = diagnose(squares, draw(30, 1, seed=0), draw(30, 1, seed=1))
    assert "With one output per sample" in report.reasons[0]
    assert report.expected is report.recommendation is None
    assert "at 30 samples of 1 output\n" in str(report)


def cauchy_in(unit: Tensor) -> Any:
    return lambda y, target: torch.log1p(((y - target) / unit.to(y)).square()).sum(1)


def test_scaling_the_loss_changes_no_answer() -> None:
    """All judgements are ratios; a power of two leaves every digit as it was."""
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    plain = diagnose(steep_ranks, y, ranks)
    for factor in (2.0**-20, 2.0**20):
        scaled = diagnose(lambda y, r, factor=factor: factor * steep_ranks(y, r), y, ranks)
        assert (scaled.verdict, scaled.recommendation is None) == (plain.verdict, plain.recommendation is None)
        assert scaled.descent.solved == pytest.approx(plain.descent.solved, rel=1e-9)
        assert scaled.spectra.negative_share == pytest.approx(plain.spectra.negative_share, rel=1e-9)
        assert scaled.derivatives.first == scaled.derivatives.second == "right"


def numpy_noise(y: Tensor, target: Tensor) -> Tensor:
    return (y - target + torch.as_tensor(numpy.random.randn(*y.shape)).to(y)).square().sum(1)  # noqa: NPY002


GENERATOR = torch.Generator().manual_seed(5)
REPEATED: dict[str, Any] = {
    "ranks": steep_ranks,
    "torch noise": lambda y, target: (y + torch.randn_like(y) - target).square().sum(1),
    "NumPy noise": numpy_noise,
    "own generator": smoothed(5),
    "generator in a closure": (
        lambda generator: lambda y, target: (y + torch.randn(y.shape, generator=generator) - target).square().sum(1)
    )(GENERATOR),
}


@pytest.mark.parametrize("generator", [numpy.random.default_rng(5), numpy.random.RandomState(5), random.Random(5)])
def test_generators_that_are_not_torchs_are_seeded_and_put_back(generator: Any) -> None:
    normal = "gauss" if isinstance(generator, random.Random) else "normal"

    def noisy(y: Tensor, target: Tensor) -> Tensor:
        noise = [[getattr(generator, normal)(0.0, 1.0) for _ in row] for row in y]
        return (y - target + torch.tensor(noise).to(y)).square().sum(1)

    before = pickle.dumps(generator)
    first, second = (diagnose(noisy, draw(20, 3, seed=0), draw(20, 3, seed=1)) for _ in range(2))
    assert first.noise is not None
    assert first == second
    assert pickle.dumps(generator) == before


def test_a_generator_without_a_state_is_left_alone() -> None:
    generator = random.SystemRandom()
    report = diagnose(lambda y: (y + generator.random()).square().sum(1), draw(9, 2, seed=0))
    assert report.noise is not None


@pytest.mark.parametrize("name", REPEATED)
def test_the_same_input_gets_the_same_answer(name: str) -> None:
    """Whatever the number of threads, the random state before, and how slow the machine happens to be."""
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    calls = 0

    def slow(y: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        time.sleep(2e-3 if calls % 7 == 0 else 0.0)
        return REPEATED[name](y, target)

    loss = slow if name == "ranks" else REPEATED[name]
    threads = torch.get_num_threads()
    reports = []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            reports.append(diagnose(loss, y, ranks))
            assert torch.get_num_threads() == count
            torch.rand(3), numpy.random.rand(3)  # noqa: NPY002
    finally:
        torch.set_num_threads(threads)
    assert reports[0].to_dict() == reports[1].to_dict() == reports[2].to_dict()


@pytest.mark.parametrize(("count", "size"), [(5000, 4), (40, 300), (3, 2000)])
def test_the_work_is_bounded_and_progress_counts_it(count: int, size: int) -> None:
    told: list[tuple[str, int]] = []
    asked: list[int] = []

    def loss(y: Tensor) -> Tensor:
        asked.append(len(y))
        return torch.log1p(y.square()).sum(1)

    report = diagnose(loss, draw(count, size, seed=0), progress=lambda stage, calls: told.append((stage, calls)))
    assert [calls for _, calls in told] == list(range(report.calls))
    assert len({stage for stage, _ in told}) >= 5
    assert report.calls < 400
    assert sorted(asked)[-20] <= 256  # but for the check that samples alone are what they are within the batch
    assert str(report.calls) in str(report)


WIDE = {
    "squares": squares,
    "steep ranks": steep_ranks,
    "smoothed": smoothed(100),
    **{name: SortingLoss(name) for name in ("softsort", "neuralsort", "logistic", "cauchy")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_two_hundred_outputs_are_not_too_many(name: str) -> None:
    if isinstance(WIDE[name], SortingLoss):
        pytest.importorskip("numba", reason="networks of 200 layers are slow without it")
    scores, ranks = draw(100, 200, seed=0), draw(100, 200, seed=1).argsort(1).argsort(1).float()
    report = diagnose(WIDE[name], scores, ranks)
    assert report.verdict != "fix"
    assert report.calls < 400


NOTHING_FINITE = {
    "values": (lambda y, target: (y * torch.nan).sum(1), "The loss is not finite"),
    "infinite values": (lambda y, target: (y / 0).square().sum(1), "The loss is not finite"),
    "their mean": (lambda y, target: (y - target * torch.nan).mean(), "The loss is not finite"),
    "gradients": (lambda y, target: y.sum(1) + (y - y).abs().sqrt().sum(1), "The gradient is not finite"),
    "noisy values": (lambda y, target: (y * torch.nan + torch.randn_like(y)).sum(1), "The loss is not finite"),
}


@pytest.mark.parametrize("name", NOTHING_FINITE)
def test_a_loss_that_is_never_finite_is_reported_and_nothing_else(name: str, tmp_path) -> None:
    loss, words = NOTHING_FINITE[name]
    report = diagnose(loss, draw(20, 3, seed=0), draw(20, 3, seed=1))
    assert report.verdict == "fix"
    assert len(report.reasons) == 1
    assert report.reasons[0].startswith(words)
    assert report.recommendation is report.derivatives is report.spectra is report.descent is None
    assert "nan" not in str(report)
    assert "right" not in str(report)
    json.dumps(report.to_dict(), allow_nan=False)
    report.plot(tmp_path / "report.png")


def test_outputs_that_are_not_finite_are_not_the_loss_to_blame() -> None:
    report = diagnose(squares, torch.full((20, 3), torch.nan), draw(20, 3, seed=1))
    assert report.verdict == "fix"
    assert "outputs" in report.reasons[0]
    assert "network" in report.reasons[0]


def test_finite_in_float64_alone_is_broken_numerics() -> None:
    report = diagnose(lambda y: (1e30 * y).square().sum(1) * 1e-60, draw(20, 3, seed=0))
    assert report.verdict == "fix"
    assert report.reasons[0].startswith("The numerics are broken")


def test_samples_without_a_value_make_no_derivative_wrong() -> None:
    """The gradient of a sample that torch.where makes NaN is zero, and finite."""
    y = draw(40, 3, seed=0)
    report = diagnose(lambda y: torch.where(y[:, 0] > 0, torch.nan, y.pow(4).sum(1)), y)
    assert report.reasons[0].endswith("look for a logarithm or a division at zero, or NaN in their targets.")
    assert report.derivatives.first == report.derivatives.second == "right"


def narrow(y: Tensor) -> Tensor:
    return y.square() @ torch.tensor([1.0, 30.0], dtype=y.dtype) + torch.sin(3 * y).sum(1)


def test_samples_that_are_not_finite_take_no_part_in_the_lines() -> None:
    """Neither those whose value nor those whose gradient alone is not a number."""

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return narrow(y) + target.sum(1) + (y - target).abs().sqrt().sum(1)

    y = draw(40, 2, seed=0) * torch.tensor([5.0, 1.0])
    target = draw(40, 2, seed=1)
    target[7] = torch.nan
    target[20] = y[20]
    others = [i for i in range(40) if i not in (7, 20)]
    report, alone = diagnose(loss, y, target), diagnose(loss, y[others], target[others])
    assert report.verdict == "fix"
    assert alone.verdict != "fix"
    assert report.descent == alone.descent
    assert report.descent.gradient.best < report.descent.start
    assert "inf" not in str(report).replace("infinite", "")


def test_outputs_that_may_be_a_set_are_pointed_out() -> None:
    """Only where a permutation of outputs and targets together changes nothing; labels and weights tell them apart."""
    y, target = draw(16, 4, seed=0), draw(16, 4, seed=1)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for loss, targets, symmetric in (
        (squares, (target,), True),
        (SortingLoss("softsort"), (target.argsort(1).argsort(1),), True),
        (lambda y, t: (y - torch.as_tensor(t["wanted"])).pow(2).sum(1), ({"wanted": target.numpy()},), True),
        (lambda y: (y - y.roll(1, 1)).pow(2).sum(1), (), False),
        (lambda y, t: ((y - t).square() * weights).sum(1), (target,), False),
        (cross_entropy, (target.argmax(1),), False),
    ):
        report = diagnose(loss, y, *targets)
        assert report.symmetric is symmetric
        assert ("exchangeable=True" in str(report)) == (symmetric and report.verdict == "open")
    assert diagnose(squares, y[:, :1], target[:, :1]).symmetric is None
