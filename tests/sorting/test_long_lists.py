"""Long lists: the Laplace relaxation against sums over all pairs, and rows in chunks against the whole matrix."""

import pytest
import torch
from test_masks import CLOSE, ragged

from newton_losses import ArgumentError
from newton_losses.sorting import (
    LaplaceSort,
    NeuralSort,
    SoftSort,
    SortingLoss,
    SortingNetwork,
    SpearmanLoss,
    TopKLoss,
    _exponential_sums,
    _row_chunks,
    soft_rank,
    soft_sort,
    soft_topk,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def laplace(x):
    return torch.where(x < 0, x.clamp(max=0).exp() / 2, 1 - (-x.clamp(min=0)).exp() / 2)


@pytest.mark.parametrize("n", [1, 2, 7, 800])
@pytest.mark.parametrize("temperature", [0.01, 30.0])
def test_ranks_and_thresholds_against_all_pairs(n, temperature, monkeypatch):
    # Longer recurrences are computed in blocks, and recurrences over blocks again.
    monkeypatch.setattr(_exponential_sums, "SHORT", 5)
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(2, n, generator=generator, dtype=torch.float64)
    scores[1, n // 2 :] = 0.25
    relaxation = LaplaceSort(temperature)
    pairs = laplace((scores.unsqueeze(-1) - scores.unsqueeze(-2)) / temperature).sum(-1) - 0.5
    torch.testing.assert_close(soft_rank(scores, relaxation), pairs, rtol=1e-9, atol=1e-8)
    for k in {1, (n + 1) // 2, n}:
        weights = soft_topk(scores, k, relaxation)
        torch.testing.assert_close(weights.sum(-1), torch.full((2,), float(k), dtype=torch.float64))
        assert ((weights >= 0) & (weights <= 1)).all()
        below = soft_topk(scores, k, relaxation, largest=False)
        torch.testing.assert_close(below, soft_topk(-scores, k, relaxation))
    ordered = soft_sort(scores, relaxation)
    expected = laplace((ordered.unsqueeze(-1) - scores.unsqueeze(-2)) / temperature).sum(-1)
    torch.testing.assert_close(expected, (torch.arange(n) + 0.5).double().expand(2, n), rtol=1e-8, atol=1e-8)


OPERATIONS = {
    "ranks": lambda s: soft_rank(s, "laplace"),
    "sorted": lambda s: soft_sort(s, "laplace"),
    "top": lambda s: soft_topk(s, 3, "laplace"),
    "Spearman": lambda s: SpearmanLoss("laplace")(s, torch.arange(7.0).expand(2, 7)),
    "order": lambda s: SortingLoss("laplace")(s, torch.arange(7.0).expand(2, 7)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_compiled_as_a_whole(name):
    scores = torch.randn(2, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    results = []
    for function in (OPERATIONS[name], torch.compile(OPERATIONS[name], fullgraph=True, backend="aot_eager")):
        value = function(scores)
        results.append((value.detach(), *torch.autograd.grad(value.square().sum(), scores)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ranks", "sorted", "top"])
def test_a_batch_of_gradients(name):
    scores = torch.randn(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together, alone = (
        torch.autograd.functional.jacobian(OPERATIONS[name], scores, vectorize=vectorize) for vectorize in (True, False)
    )
    torch.testing.assert_close(together, alone)


def test_the_matrix_is_doubly_stochastic_and_sorts():
    scores, _, mask = ragged()
    matrix = LaplaceSort(0.3).matrix(scores, mask=mask)
    inside = torch.arange(6) < mask.sum(-1, keepdim=True)
    torch.testing.assert_close(matrix.sum(-1), inside.double(), **CLOSE)
    torch.testing.assert_close(matrix.sum(-2), mask.double(), **CLOSE)
    sharp = LaplaceSort(1e-6).matrix(scores[2])
    assert torch.equal(sharp.argmax(-1), scores[2].argsort())


def test_masked_lists_and_derivatives():
    scores, values, mask = ragged()
    relaxation = LaplaceSort(0.4)
    leaf = scores.clone().requires_grad_()
    for function in (
        lambda s, **options: soft_rank(s, relaxation, **options),
        lambda s, **options: soft_topk(s, 1, relaxation, **options),
    ):
        found = function(leaf, mask=mask)
        assert (found[~mask] == 0).all()
        (gradient,) = torch.autograd.grad((found * torch.arange(6)).sum(), leaf)
        assert (gradient[~mask] == 0).all()
        for row in range(1, 7):
            torch.testing.assert_close(found[row, mask[row]], function(scores[row, mask[row]]), **CLOSE)
    loss = SortingLoss(relaxation)
    alone = torch.stack([loss(s[m], v[m]) for s, v, m in zip(scores[1:], values[1:], mask[1:], strict=True)])
    torch.testing.assert_close(loss(scores, values, mask)[1:], alone, **CLOSE)
    hessian = torch.func.hessian(lambda s: loss._value(*loss._prepare(s[None], values[2:3]))[0])(scores[2])
    torch.testing.assert_close(loss.expand(scores[2:3], values[2:3]).curvature.dense(), hessian, **CLOSE)
    point = scores[2:4].nan_to_num() + 0.01 * torch.arange(6)
    point.requires_grad_()
    exists = mask[2:4]
    for function in (
        lambda s: soft_rank(s, relaxation, mask=exists),
        lambda s: soft_topk(s, 2, relaxation, mask=exists),
        lambda s: soft_sort(s, relaxation, mask=exists),
        lambda s: SpearmanLoss(relaxation)(s, values[2:4], exists),
        lambda s: loss(s, values[2:4], exists),
    ):
        assert torch.autograd.gradcheck(function, point, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, point, fast_mode=True)


@pytest.mark.parametrize("spread", [1e3, 1e6, 4e9])
def test_gradients_of_top_k_far_beyond_the_digits_of_float32(spread):
    """The logarithm of a weight is then −spread, give or take its rounding, which no gradient may be made of."""
    scores = spread * torch.tensor([[-1.0, -0.25, -0.5, 0.0, -1.0]], dtype=torch.float64)
    for function in (
        lambda s: TopKLoss({1: 0.5, 2: 0.5}, LaplaceSort(1.0))(s, torch.tensor([0])),
        lambda s: soft_topk(s, 2, LaplaceSort(1.0), largest=False).square().sum(),
    ):
        found, wanted = (leaf.requires_grad_() for leaf in (scores.float(), scores.clone()))
        (gradient,) = torch.autograd.grad(function(found).sum(), found)
        # With a graph, by the recorded operators.
        (exact,) = torch.autograd.grad(function(wanted).sum(), wanted, create_graph=True)
        torch.testing.assert_close(gradient.double(), exact.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("relaxation", [NeuralSort(1.0), SoftSort(0.1), SoftSort(0.1, 2)], ids=str)
def test_rows_in_chunks_are_the_whole_matrix(relaxation, masked, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 1, 20, generator=generator, dtype=torch.float64)
    scores[1, :, :5] = 0.2
    mask = (torch.rand(3, 1, 20, generator=generator) < 0.7) if masked else None
    for function in (
        lambda s: soft_sort(s, relaxation, mask=mask),
        lambda s: soft_sort(s, relaxation, mask=mask, descending=True),
        lambda s: soft_rank(s, relaxation, mask=mask, descending=True),
        lambda s: soft_topk(s, 7, relaxation, mask=mask),
        lambda s: soft_topk(s, 20, relaxation, mask=mask),
        lambda s: soft_topk(s, 15, relaxation, mask=mask, largest=False),
    ):
        results = []
        for cells in (2**24, 200):
            monkeypatch.setattr(_row_chunks, "CELLS", cells)
            monkeypatch.setattr(_row_chunks, "CHUNK", 200)
            leaf = scores.clone().requires_grad_()
            found = function(leaf)
            (gradient,) = torch.autograd.grad((found * torch.linspace(0, 1, 20)).sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad(gradient.square().sum(), leaf, retain_graph=True)
            (quick,) = torch.autograd.grad((function(leaf) * torch.linspace(0, 1, 20)).sum(), leaf)
            torch.testing.assert_close(quick, gradient.detach(), **CLOSE)
            results.append((found.detach(), gradient.detach(), second))
        torch.testing.assert_close(*results, **CLOSE)


def test_an_error_says_what_suits_long_lists():
    with pytest.raises(ArgumentError, match=r"n=50000 items need .* Use the algorithm 'laplace'"):
        soft_rank(torch.zeros(50_000), SortingNetwork(None))
    with pytest.raises(ArgumentError, match="or 'softsort' and 'neuralsort'"):
        soft_rank(torch.zeros(2000), "logistic")
    with pytest.raises(ArgumentError, match="laplace"):
        SortingLoss("softsort")(torch.zeros(50_000), torch.zeros(50_000))


@pytest.mark.slow
def test_a_million_items():
    scores = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for result in (soft_rank(scores, "laplace"), soft_topk(scores, 1000, "laplace"), soft_sort(scores, "laplace")):
        (gradient,) = torch.autograd.grad(result.square().mean(), scores)
        assert gradient.isfinite().all()
    assert soft_topk(scores, 1000, "laplace").sum().item() == pytest.approx(1000, rel=1e-5)


def test_chunks_of_rows_of_a_plain_batch_of_lists(monkeypatch):
    """A batch `(N, n)`, also where a chunk is less than one row of each list."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 20, generator=generator) < 0.7

    def results():
        for relaxation in (SoftSort(0.1), NeuralSort(1.0)):
            yield soft_sort(scores, relaxation, mask=mask)
            yield soft_rank(scores, relaxation, mask=mask)
            yield soft_topk(scores, 7, relaxation, mask=mask)

    wanted = list(results())
    monkeypatch.setattr(_row_chunks, "CELLS", 200)
    for chunk in (200, 10):
        monkeypatch.setattr(_row_chunks, "CHUNK", chunk)
        torch.testing.assert_close(list(results()), wanted, **CLOSE)


def test_descending_is_ascending_from_the_other_end():
    scores = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    ascending = soft_sort(scores, LaplaceSort(0.1))
    torch.testing.assert_close(soft_sort(scores, LaplaceSort(0.1), descending=True), ascending.flip(-1))
    torch.testing.assert_close(ascending, scores.sort().values, atol=0.05, rtol=0)


def test_scores_and_slopes_that_torch_keeps_with_a_sign():
    """The imaginary part of a conjugate is stored without its minus, and NumPy cannot see that."""
    draws = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.complex128)
    scores, slopes = draws.conj().imag
    assert scores.is_neg()
    wanted, found = (-draws.imag[0]).requires_grad_(), scores.requires_grad_()
    soft_rank(wanted, LaplaceSort(1.0)).backward(-draws.imag[1])
    soft_rank(found, LaplaceSort(1.0)).backward(slopes)
    torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.parametrize("n", [2, 8, 9])
def test_a_matrix_of_close_scores_is_doubly_stochastic(n):
    """Most thresholds are then within one temperature of all items, on one side of them."""
    matrix = LaplaceSort(1.0).matrix(torch.linspace(-0.3, 0.3, n, dtype=torch.float64))
    for dim in (-1, -2):
        torch.testing.assert_close(matrix.sum(dim), torch.ones(n, dtype=torch.float64), **CLOSE)


def test_no_lists_at_all():
    for function in (soft_rank, soft_sort):
        assert function(torch.zeros(0, 3), LaplaceSort(1.0)).shape == (0, 3)
