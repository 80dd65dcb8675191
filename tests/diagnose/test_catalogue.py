"""Every loss of the catalogue is recognised."""

import json
import time
from dataclasses import replace

import pytest
import torch
from catalogue import Known, catalogue, cross_entropy, draw, smoothed, squares, steep_ranks

from newton_losses.curvature import NormalizedDamping
from newton_losses.diagnose import _diagnose, diagnose
from newton_losses.diagnose._verdict import Facts, recommend
from newton_losses.sorting import SortingLoss

KNOWN = catalogue()


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_the_answer(known: Known) -> None:
    report = diagnose(known.loss, known.y, *known.targets)
    assert report.verdict == known.verdict, str(report)
    assert report.verdict != "yes" or report.recommendation is not None
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
        assert report.verdict == "no", str(report)
        assert report.spectra is not None
        assert report.spectra.convex


def test_a_recommendation_can_be_used() -> None:
    scores = draw(30, 5, seed=0).requires_grad_()
    ranks = draw(30, 5, seed=1).argsort(1).argsort(1).float()
    chosen = diagnose(steep_ranks, scores, ranks).recommendation
    assert chosen is not None
    assert isinstance(chosen.damping, NormalizedDamping)
    assert chosen.is_default == ("damping" not in str(chosen))
    import newton_losses as nl

    newton = eval(str(chosen), {"nl": nl, "loss": steep_ranks})
    newton(scores, ranks).backward()
    assert torch.isfinite(scores.grad).all()


def test_scaling_the_loss_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """All judgements are ratios; a power of two leaves every digit as it was."""
    for budget in ("GRADIENT_BUDGET", "FIRST_BUDGET", "HESSIAN_BUDGET", "DESCENT_BUDGET"):
        monkeypatch.setattr(_diagnose, budget, 1e6)  # how many samples there is time for would differ
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    plain = diagnose(steep_ranks, y, ranks)
    for factor in (2.0**-20, 2.0**20):
        scaled = diagnose(lambda y, r, factor=factor: factor * steep_ranks(y, r), y, ranks)
        assert scaled.verdict == plain.verdict
        assert scaled.descent.solved == pytest.approx(plain.descent.solved, rel=1e-9)
        assert scaled.spectra.negative_share == pytest.approx(plain.spectra.negative_share, rel=1e-9)
        assert scaled.derivatives.first == scaled.derivatives.second == "right"


WIDE = {
    "squares": squares,
    "steep ranks": steep_ranks,
    "smoothed": smoothed(100),
    "reference logistic": SortingLoss("logistic", numerics="reference"),
    **{
        name: SortingLoss(name)
        for name in (
            "softsort",
            "neuralsort",
            "logistic",
            "logistic_phi",
            "gaussian",
            "cauchy",
            "reciprocal",
            "optimal",
        )
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_takes_less_than_five_seconds(name) -> None:
    """200 outputs and 100 samples. Seconds of this process on one core: a busy machine is not the loss's fault."""
    if isinstance(WIDE[name], SortingLoss):
        pytest.importorskip("numba", reason="networks of 200 layers are slow without it")
    scores, ranks = draw(100, 200, seed=0), draw(100, 200, seed=1).argsort(1).argsort(1).float()
    # The first call of all imports torch.func, and numba compiles.
    diagnose(squares, scores[:2], ranks[:2])
    diagnose(SortingLoss("logistic"), scores[:2, :3], ranks[:2, :3])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.process_time()
    diagnose(WIDE[name], scores, ranks)
    taken = time.process_time() - start
    torch.set_num_threads(threads)
    assert taken < 5


def test_the_clock_decides_nothing_but_how_much_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times slower, by its own account, the same loss gets the same verdict for the same reason."""
    y, ranks = draw(40, 5, seed=0), draw(40, 5, seed=1).argsort(1).argsort(1).float()
    quick = diagnose(steep_ranks, y, ranks)
    processor = time.process_time
    monkeypatch.setattr(time, "process_time", lambda: 10 * processor())
    slow = diagnose(steep_ranks, y, ranks)
    assert (slow.verdict, slow.recommendation) == (quick.verdict, quick.recommendation)
    assert slow.spectra.samples <= quick.spectra.samples


NOTHING_FINITE = {
    "values": (lambda y, target: (y * torch.nan).sum(1), "The loss is not finite"),
    "infinite values": (lambda y, target: (y / 0).square().sum(1), "The loss is not finite"),
    "their mean": (lambda y, target: (y - target * torch.nan).mean(), "The loss is not finite"),
    "gradients": (lambda y, target: y.sum(1) + (y - y).abs().sqrt().sum(1), "The gradient is not finite"),
    "noisy values": (lambda y, target: (y * torch.nan + torch.randn_like(y)).sum(1), "The loss is not finite"),
}


@pytest.mark.parametrize("name", NOTHING_FINITE)
def test_a_loss_that_is_never_finite_is_told_so_and_nothing_else(name: str, tmp_path) -> None:
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
    assert report.reasons[0].endswith("look for a logarithm or a division at zero.")
    assert report.derivatives.first == report.derivatives.second == "right"


def test_the_default_damping_is_recommended_unless_another_leads_lower() -> None:
    """In a narrow valley a factor of 1 leaves half of the gradient across it, and 0.01 ends at the bottom."""
    scores, ranks = draw(30, 5, seed=0), draw(30, 5, seed=1).argsort(1).argsort(1).float()
    ordinary = diagnose(steep_ranks, scores, ranks)
    assert ordinary.recommendation.is_default
    assert "(the default damping: λ" in str(ordinary)
    along = draw(30, 2, seed=0) * torch.tensor([5.0, 1.0])
    valley = diagnose(lambda y: y.square() @ torch.tensor([1.0, 30.0], dtype=y.dtype), along)
    assert valley.recommendation.damping.factor < 1
    assert "damping=nl.NormalizedDamping(0.0" in str(valley.recommendation)
    assert f"(λ = {valley.recommendation.damping_here:.3g} at these outputs; the default damping does worse)" in str(
        valley
    )


class Clock:
    """Processor time that a loss tells: so many seconds for each sample of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "process_time", lambda: self.now)

    def slowed(self, loss, seconds: float):
        def slow(y, *targets):
            self.now += seconds * len(y)
            return loss(y, *targets)

        return slow


def narrow(y: torch.Tensor) -> torch.Tensor:
    return y.square() @ torch.tensor([1.0, 30.0], dtype=y.dtype) + torch.sin(3 * y).sum(1)


@pytest.mark.parametrize(("loss", "count"), [("ranks", 6), ("ranks", 40), ("narrow", 6), ("narrow", 7)])
def test_a_busy_machine_changes_no_recommendation(loss: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ranks = draw(count, 5, seed=1).argsort(1).argsort(1).float()
    function, *batch = (steep_ranks, draw(count, 5, seed=0), ranks)
    if loss == "narrow":
        function, batch = narrow, [draw(count, 2, seed=0) * torch.tensor([5.0, 1.0])]
    reports = [diagnose(clock.slowed(function, cost), *batch) for cost in (1e-5, 5e-4, 2e-3)]
    assert {report.verdict for report in reports} == {"yes"}
    assert len({str(report.recommendation) for report in reports}) == 1
    assert all(report.descent.samples >= min(count, 16) for report in reports)


def test_at_least_sixteen_samples_are_measured_unless_one_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    y = draw(40, 2, seed=0) * torch.tensor([5.0, 1.0])
    for seconds, samples in ((0.01, 16), (0.05, 2)):
        report = diagnose(clock.slowed(narrow, seconds), y)
        assert report.descent.samples == report.cost.samples == samples
        assert {candidate.curvature for candidate in report.descent.candidates} == {"fisher"}
        assert (report.verdict == "yes") == ("The Hessians of 16 samples" in str(report))
    assert report.recommendation is None or report.recommendation.is_default


@pytest.mark.parametrize(
    ("samples", "batch", "trusted"), [(16, 40, True), (8, 8, True), (15, 40, False), (7, 7, False)]
)
def test_another_damping_is_recommended_from_enough_samples_only(samples: int, batch: int, trusted: bool) -> None:
    along = draw(40, 2, seed=0) * torch.tensor([5.0, 1.0])
    descent = diagnose(lambda y: y.square() @ torch.tensor([1.0, 30.0], dtype=y.dtype), along).descent
    chosen = recommend(Facts(descent=replace(descent, samples=samples), batch=batch))
    assert chosen.is_default != trusted


def test_samples_that_are_not_finite_take_no_part_in_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those whose value nor those whose gradient alone is not a number."""
    clock = Clock(monkeypatch)

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return narrow(y) + target.sum(1) + (y - target).abs().sqrt().sum(1)

    y = draw(40, 2, seed=0) * torch.tensor([5.0, 1.0])
    target = draw(40, 2, seed=1)
    target[7] = torch.nan
    target[20] = y[20]
    others = [i for i in range(40) if i not in (7, 20)]
    quick = clock.slowed(loss, 1e-6)  # so quick that all samples are measured
    report, alone = diagnose(quick, y, target), diagnose(quick, y[others], target[others])
    assert report.verdict == "fix"
    assert alone.verdict == "yes"
    assert report.descent == alone.descent
    assert report.descent.gradient.best < report.descent.start
    assert recommend(Facts(descent=report.descent, batch=38)) == alone.recommendation
    assert "inf" not in str(report).replace("infinite", "")
