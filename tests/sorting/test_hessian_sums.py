"""The curvature of losses of lists in closed form, against Hessians by automatic differentiation."""

from functools import partial
from itertools import product

import pytest
import torch
from torch.autograd import forward_ad

from newton_losses import NewtonLoss, ShapeError
from newton_losses.curvature import expand
from newton_losses.sorting import (
    LaplaceSort,
    ListNetLoss,
    NDCGLoss,
    NeuralSort,
    PairwiseLogisticLoss,
    PartialOrderLoss,
    SpearmanLoss,
    TopKLoss,
    _exponential_sums,
    soft_rank,
    soft_topk,
    survival_ranks,
    tied_ranks,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def first(count):
    return torch.zeros(count, dtype=torch.int64)


LOSSES = {
    "spearman": lambda r, n, v, m: (SpearmanLoss(r), (v,)),
    "ndcg": lambda r, n, v, m: (NDCGLoss(r), (v,)),
    "ndcg@2": lambda r, n, v, m: (NDCGLoss(r, k=min(2, n)), (v,)),
    "ndcg, table": lambda r, n, v, m: (NDCGLoss(r, discounts=torch.linspace(1, 0.1, n).double()), (v,)),
    "ndcg, constant": lambda r, n, v, m: (NDCGLoss(r, k=1, discounts=torch.ones_like), (v,)),
    "top 1": lambda r, n, v, m: (TopKLoss(1, r), (first(len(v)),)),
    "top 1 and 3": lambda r, n, v, m: (TopKLoss({1: 0.5, min(3, n): 0.5}, r), (first(len(v)),)),
    "preselected": lambda r, n, v, m: (TopKLoss(1, r, preselect=2), (first(len(v)),)),
    "listnet": lambda r, n, v, m: (ListNetLoss(), (v,)),
    "pairs": lambda r, n, v, m: (PairwiseLogisticLoss(), (v,)),
    "ties": lambda r, n, v, m: (PartialOrderLoss(r), tied_ranks(v, mask=m)),
    "survival": lambda r, n, v, m: (PartialOrderLoss(r, descending=True), survival_ranks(v.double(), v > 1, mask=m)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_traces_are_those_of_the_hessian(name):
    generator = torch.Generator().manual_seed(len(name))
    for trial in range(12):
        n, temperature = 1 + trial % 8, 10 ** (trial % 3 - 1.5)
        scores = torch.randn(2, n, generator=generator, dtype=torch.float64) * 10 ** (trial % 4 - 2)
        values = torch.randint(0, 4, (2, n), generator=generator)
        mask = torch.rand(2, n, generator=generator) < 0.8 if trial % 2 else None
        loss, targets = LOSSES[name](LaplaceSort(temperature), n, values, mask)
        trace, total = loss.hessian_sums(scores, *targets, mask)
        for row in range(2):

            def of_row(x, row=row, loss=loss, scores=scores, targets=targets, mask=mask):
                return loss(torch.cat([scores[:row], x[None], scores[row + 1 :]]), *targets, mask)[row]

            hessian = torch.autograd.functional.hessian(of_row, scores[row])
            # Terms of the size of 1/τ² cancel where the order is right.
            close = {"rtol": 1e-9, "atol": 1e-12 / temperature**2}
            torch.testing.assert_close(trace[row], hessian.trace(), **close)
            torch.testing.assert_close(total[row], hessian.sum(), **close)


@pytest.mark.parametrize("name", LOSSES)
def test_lists_may_have_several_leading_dimensions(name):
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_()
    values = torch.randint(0, 4, (6, 4), generator=generator)
    masks = None, torch.rand(6, 4, generator=generator) < 0.8
    for relaxation, mask in product((LaplaceSort(0.5), LaplaceSort(1e-3), NeuralSort(0.5)), masks):
        loss, targets = LOSSES[name](relaxation, 4, values, mask)
        shaped, *more = [None if t is None else t.unflatten(0, (3, 2)) for t in (scores, *targets, mask)]
        costs, expected = loss(shaped, *more), loss(scores, *targets, mask)
        torch.testing.assert_close(costs.flatten(), expected)
        gradients = [torch.autograd.grad(one.sum(), scores)[0] for one in (costs, expected)]
        torch.testing.assert_close(*gradients)
        sums, same = loss.hessian_sums(shaped, *more), loss.hessian_sums(scores, *targets, mask)
        for one, other in zip(sums or (), same or (), strict=True):
            torch.testing.assert_close(one.flatten(), other)


def test_forward_mode_on_the_tape():
    """Not that of `torch.func`, which keeps tensors for itself."""
    generator = torch.Generator().manual_seed(6)
    scores, direction = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    for temperature in (0.01, 1.0):
        for relaxed in (soft_rank, partial(soft_topk, k=2)):
            of = partial(relaxed, algorithm=LaplaceSort(temperature))
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(of(forward_ad.make_dual(scores, direction))).tangent
            torch.testing.assert_close(found, torch.func.jvp(of, (scores,), (direction,))[1])


def test_far_from_each_other_and_from_zero_nothing_is_lost():
    """Between items that are far apart every density underflows; only ratios of them may be computed."""
    scores = torch.tensor([[1e6, -1e6, 3.0, 1e6 + 0.2, 1e6 + 0.25]], dtype=torch.float64)
    values = torch.tensor([[0, 1, 2, 3, 3]])
    for name, make in LOSSES.items():
        loss, targets = make(LaplaceSort(0.1), 5, values, None)
        hessian = torch.autograd.functional.hessian(lambda x, loss=loss, t=targets: loss(x, *t).sum(), scores)
        trace = loss.hessian_sums(scores, *targets)[0]
        torch.testing.assert_close(trace[0], hessian[0, :, 0].trace(), rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", LOSSES)
def test_a_newton_loss_uses_them(name):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    values = torch.randint(0, 4, (6, 5), generator=generator)
    mask = torch.rand(6, 5, generator=generator) < 0.8
    loss, targets = LOSSES[name](LaplaceSort(0.5), 5, values, mask)
    options = {"mask": mask, "exchangeable": True}
    found = expand(lambda y, *t: loss(y, *t, mask), scores, *targets, **options)
    closed = NewtonLoss(loss, curvature="hessian")
    with torch.no_grad():
        assert loss.hessian_sums(scores, *targets, mask) is not None
    scores[3, 2], mask[3, 2] = torch.nan, True  # its list is left out
    leaf, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    closed(leaf, *targets, mask=mask).backward()
    plain = NewtonLoss(lambda y, *t: loss(y, *t, mask), exchangeable=True, curvature="hessian")
    plain(other, *targets, mask=mask).backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert found.curvature.among.isfinite()


class Quartic:
    """A loss of users: Σ y⁴ over the outputs that exist."""

    calls = 0

    def __call__(self, y, mask):
        return torch.where(mask, y.pow(4), 0.0).sum(-1)

    def hessian_sums(self, y, target, mask=None):
        self.calls += 1
        assert torch.equal(mask, target)
        trace = torch.where(mask, 12 * y.square(), 0.0).sum(-1)
        return trace, trace


def test_a_users_loss_may_bring_them_too():
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 3, generator=generator) < 0.7
    loss = Quartic()
    found = expand(loss, scores, mask, mask=mask, exchangeable=True).curvature
    expected = expand(lambda y, mask: loss(y, mask), scores, mask, mask=mask, exchangeable=True).curvature
    assert loss.calls == 1
    torch.testing.assert_close((found.among, found.common), (expected.among, expected.common))
    loss.hessian_sums = lambda y, target, mask=None: (torch.ones(3), torch.ones(3))
    with pytest.raises(
        ShapeError, match=r"hessian_sums returned shapes \(3,\) and \(3,\) for outputs of shape \(4, 3\)"
    ):
        expand(loss, scores, mask, mask=mask, exchangeable=True)
    for one, other in ((3, 4), (4, 3)):
        loss.hessian_sums = lambda y, target, mask=None, shapes=(one, other): tuple(map(torch.ones, shapes))
        with pytest.raises(ShapeError, match=rf"hessian_sums returned shapes \({one},\) and \({other},\)"):
            expand(loss, scores, mask, mask=mask, exchangeable=True)


def test_at_ties_stored_order_has_no_influence():
    scores = torch.tensor([[0.3, 0.3, 0.1, 0.3, 0.1]], dtype=torch.float64)
    values = torch.tensor([[0, 3, 1, 2, 2]])
    permutation = torch.tensor([3, 4, 1, 0, 2])
    for loss in (SpearmanLoss("laplace"), NDCGLoss("laplace"), NDCGLoss("laplace", k=2)):
        here = expand(loss, scores, values, exchangeable=True).curvature
        there = expand(loss, scores[:, permutation], values[:, permutation], exchangeable=True).curvature
        torch.testing.assert_close(here.among, there.among)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e3])
def test_at_a_threshold_on_an_item_both_sides_count_half(temperature):
    """The second derivative jumps there: just below and above it has other values, and between them their mean."""
    scores = temperature * torch.tensor([[0.0, 0.0, -1.0, 1.0]], dtype=torch.float64)
    apart = temperature * 1e-7 * torch.tensor([[1.0, -1.0, 0.0, 0.0]], dtype=torch.float64)
    relaxation, grades = LaplaceSort(temperature), torch.tensor([[0, 1, 0, 1]])
    for loss, targets in (
        (NDCGLoss(relaxation, k=2), (grades,)),
        (TopKLoss(2, relaxation), (first(1),)),
        (TopKLoss({1: 0.5, 2: 0.5}, relaxation), (first(1),)),
        (PartialOrderLoss(relaxation), tied_ranks(grades)),
    ):
        on, above, below = (loss.hessian_sums(scores + side * apart, *targets)[0] for side in (0, 1, -1))
        torch.testing.assert_close(on, (above + below) / 2, rtol=1e-5, atol=0)


def test_narrow_and_wide_lists_are_computed_alike(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 40, generator=generator) < 0.7
    results = []
    for narrow in (1000.0, 0.0):
        monkeypatch.setattr(_exponential_sums, "NARROW", narrow)
        leaf = scores.clone().requires_grad_()
        ranks = soft_rank(leaf, "laplace", mask=mask)
        (quick,) = torch.autograd.grad(ranks.square().sum(), leaf, retain_graph=True)
        (slow,) = torch.autograd.grad(ranks.square().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(slow.pow(3).sum(), leaf)
        torch.testing.assert_close(quick, slow.detach())
        results.append((ranks.detach(), quick, second))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_lists_are_sorted_as_whole_numbers(dtype, monkeypatch):
    monkeypatch.setattr(_exponential_sums, "LONG_SORT", 1)
    scores = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(3)).to(dtype)
    scores[0, 0, :6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-40, -1e30])
    ordered = scores.gather(-1, _exponential_sums.ascending_order(scores))
    assert torch.equal(ordered, scores.sort(-1).values)


@pytest.mark.slow
def test_a_newton_loss_of_a_hundred_thousand_items():
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(1, 100_000, generator=generator, requires_grad=True)
    values = torch.randint(0, 5, (1, 100_000), generator=generator)
    for loss in (SpearmanLoss("laplace"), NDCGLoss("laplace", k=100), PartialOrderLoss("laplace")):
        targets = tied_ranks(values) if isinstance(loss, PartialOrderLoss) else (values,)
        (gradient,) = torch.autograd.grad(NewtonLoss(loss, curvature="hessian")(scores, *targets), scores)
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("relevance", [[0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0]], ids=str)
def test_one_relevant_item_is_a_list_with_an_order_too(relevance):
    """The linear gain of its ideal order is 1; without any it is 0, and there is nothing to learn."""
    scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]], dtype=torch.float64)
    loss, grades = NDCGLoss(LaplaceSort(0.3), gains="linear"), torch.tensor([relevance])
    hessian = torch.autograd.functional.hessian(lambda s: loss(s, grades).sum(), scores).reshape(4, 4)
    torch.testing.assert_close(loss.hessian_sums(scores, grades)[0], hessian.trace()[None])
    assert bool(hessian.any()) is any(relevance)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_large_scores_have_the_traces_of_small_ones(k):
    """Also where a threshold lies on two items, and what keeps rounding apart is below the digits of the scores."""
    scores, loss = torch.tensor([[-0.25, 0.0, 0.0, 0.25]], dtype=torch.float64), TopKLoss(k, LaplaceSort(0.25))
    near, far = (loss.hessian_sums(scores + shift, torch.tensor([1])) for shift in (0.0, 2.0**30))
    torch.testing.assert_close(far, near)


@pytest.mark.parametrize("bad", ["value", "trace", "total"])
def test_a_list_without_a_value_or_a_sum_is_left_out(bad):
    class Brought:
        def __call__(self, y, weight):
            return y.pow(4).sum(1) + (torch.where(weight == 2, torch.nan, 0.0) if bad == "value" else 0.0)

        def hessian_sums(self, y, weight, mask=None):
            sums = {"trace": 12 * y.square().sum(1), "total": 12 * y.square().sum(1)}
            return tuple(torch.where((weight == 2) & (name == bad), torch.nan, one) for name, one in sums.items())

    y, weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0])
    found = expand(Brought(), y, weight, exchangeable=True).curvature
    alone = expand(Brought(), y[[0, 2]], weight[[0, 2]], exchangeable=True).curvature
    torch.testing.assert_close((found.among, found.common), (alone.among, alone.common))
