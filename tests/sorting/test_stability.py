"""No NaN, no infinity, and float32 in agreement with float64, on adversarial and on random scores."""

import importlib.util
from pathlib import Path

import pytest
import torch
from sorting_cases import NAMES, make

from newton_losses.sorting import SortingLoss, SpearmanLoss, TopKLoss, soft_sort

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
specification = importlib.util.spec_from_file_location("sorting_fuzz", BENCHMARKS / "sorting_fuzz.py")
sorting_fuzz = importlib.util.module_from_spec(specification)
specification.loader.exec_module(sorting_fuzz)


def adversarial(n):
    """Scores of spread up to 1e6, each with the order they ask for and with the reverse."""
    generator = torch.Generator().manual_seed(0)
    line = torch.linspace(-0.5, 0.5, n)
    rows = [
        torch.zeros(n),
        torch.full((n,), 1e6),
        line * 1e6,
        -line * 1e6,
        line * 1e-30,
        line.sign() * 5e5,
        line.sign() * 5e5 + line * 0.25,
        torch.where(torch.arange(n) == 0, 1e6, 0.0),
        (line * 1e6).round(decimals=-5),
        line.sign() * 10 ** (6 - 12 * line.abs()),
        line[torch.randperm(n, generator=generator)] * 1e6,
        torch.randn(n, generator=generator),
    ]
    scores = torch.stack(rows)
    ascending = torch.arange(n).expand_as(scores)
    return torch.cat((scores, scores)), torch.cat((ascending, ascending.flip(-1)))


@pytest.mark.parametrize(
    ("n", "sharpness"),
    [
        (2, 1000.0),
        (5, 10.0),
        (5, 1000.0),
        *(pytest.param(n, sharpness, marks=pytest.mark.slow) for n in (3, 16) for sharpness in (0.1, 10.0, 1000.0)),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_adversarial_scores(name, n, sharpness):
    """Sample by sample, so that no Hessian hides behind a larger one."""
    scores, values = adversarial(n)
    outcome = sorting_fuzz.Outcome()
    for ties in ("share", "mask"):
        loss = SortingLoss(make(name, sharpness), ties=ties)
        for start in range(len(scores)):
            one = slice(start, start + 1)
            sorting_fuzz.check(loss, scores[one], values[one], f"row {start}, {ties}", outcome)
    assert not outcome.not_finite
    assert all(error < 1e-4 for error, _ in outcome.worst.values()), outcome.worst


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [0.1, 1000.0])
@pytest.mark.parametrize("name", NAMES)
def test_adversarial_scores_of_64_items(name, sharpness):
    scores, values = adversarial(64)
    outcome = sorting_fuzz.Outcome()
    sorting_fuzz.check(SortingLoss(make(name, sharpness)), scores, values, "all rows", outcome)
    assert not outcome.not_finite
    assert all(error < 1e-4 for error, _ in outcome.worst.values()), outcome.worst


def test_random_scores():
    outcome = sorting_fuzz.fuzz(1000, seed=1, largest=10)
    assert outcome.cases == 1000
    assert not outcome.not_finite
    assert all(error < 1e-4 for error, _ in outcome.worst.values()), outcome.worst


@pytest.mark.slow
def test_many_random_scores():
    outcome = sorting_fuzz.fuzz(100_000, seed=0)
    assert not outcome.not_finite
    assert all(error < 1e-4 for error, _ in outcome.worst.values()), outcome.worst


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_operators_are_as_stable_as_the_closed_form(name):
    scores, values = adversarial(5)
    loss = SortingLoss(make(name, 1000.0))
    leaf = scores.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf, values).sum(), leaf, create_graph=True)
    assert gradient.isfinite().all()
    for column in range(5):
        (second,) = torch.autograd.grad(gradient[:, column].sum(), leaf, retain_graph=True)
        assert second.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_ranking_losses_are_finite_too(name):
    scores, values = adversarial(5)
    leaf = scores.requires_grad_()
    for loss, target in (
        (TopKLoss(2, make(name, 1000.0)), values[:, 0]),
        (SpearmanLoss(make(name, 1000.0)), values),
    ):
        value = loss(leaf, target)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


def test_reference_numerics_explode_where_the_stable_ones_do_not():
    """The artefact that the stable numerics are there to remove, on an ordinary spread of scores."""
    generator = torch.Generator().manual_seed(0)
    scores, values = 10 * torch.randn(1000, 5, generator=generator), torch.rand(1000, 5, generator=generator)
    norms = {
        numerics: SortingLoss("softsort", temperature=0.1, numerics=numerics)
        .expand(scores, values, curvature=None)
        .gradient.norm(dim=-1)
        .nan_to_num(torch.inf)
        .quantile(0.99)
        for numerics in ("stable", "reference")
    }
    assert norms["stable"] < 10
    assert norms["reference"] > 100 * norms["stable"]


@pytest.mark.parametrize("name", ["softsort", "neuralsort", "logistic"])
def test_large_scores_close_to_each_other_keep_the_digits_of_their_gradient(name: str) -> None:
    """Rows of P sum to one up to rounding, which large scores would multiply; differences to one of them do not."""
    near = (torch.randn(16, 6, generator=torch.Generator().manual_seed(0)) * 16).round() / 16 + 2**16  # exact
    found = []
    for dtype in (torch.float32, torch.float64):
        scores = near.to(dtype, copy=True).requires_grad_()
        (soft_sort(scores, name) * torch.arange(6, dtype=dtype)).sum().backward()
        found.append(scores.grad.double())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_a_score_beyond_what_squares_can_hold_is_treated_like_infinity(kind: str) -> None:
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    scores[1, 0], scores[2, 0] = 1e11, 1e13
    good = torch.tensor([True, True, False, True])
    values = torch.arange(5.0).expand(4, 5)
    loss = SortingLoss("softsort")
    found, alone = (loss.expand(scores[w], values[w], curvature=kind) for w in (good | True, good))
    assert torch.equal(found.value.isfinite(), good)
    assert torch.equal(found.gradient.isfinite().all(1), good)
    torch.testing.assert_close(found.curvature.dense(), alone.curvature.dense())
