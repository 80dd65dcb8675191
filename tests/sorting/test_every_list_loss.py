"""Every loss and soft operation of lists with a mask: derivatives by differences, and Newton steps by brute force.

The other files look at one part each; here a loss that is new to the package gets its line in `LOSSES`.
"""

import pytest
import torch
from sorting_cases import make
from test_masks import CLOSE, ragged

from newton_losses import NewtonLoss
from newton_losses.sorting import (
    LaplaceSort,
    ListNetLoss,
    NDCGLoss,
    PairwiseLogisticLoss,
    PartialOrderLoss,
    SortingLoss,
    SpearmanLoss,
    TopKLoss,
    soft_rank,
    soft_sort,
    soft_topk,
    survival_ranks,
    tied_ranks,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def top(relaxation, n):
    return TopKLoss({1: 0.5, 2: 0.5} if n > 1 else 1, relaxation)


# A relaxation and the number of items to a loss, and values and mask to its targets.
LOSSES = {
    "sorting": (lambda r, n: SortingLoss(r), lambda v, m: (v,)),
    "sorting, reference": (lambda r, n: SortingLoss(r, numerics="reference"), lambda v, m: (v,)),
    "spearman": (lambda r, n: SpearmanLoss(r), lambda v, m: (v,)),
    "ndcg": (lambda r, n: NDCGLoss(r), lambda v, m: (v,)),
    "ndcg@2": (lambda r, n: NDCGLoss(r, k=min(2, n)), lambda v, m: (v,)),
    "ties": (lambda r, n: PartialOrderLoss(r), lambda v, m: tied_ranks(v, mask=m)),
    "survival": (
        lambda r, n: PartialOrderLoss(r, descending=True),
        lambda v, m: survival_ranks(v * 1.0, v > 1, mask=m),
    ),
    "top 1 and 2": (top, lambda v, m: (m.int().argmax(-1),)),
    "listnet": (lambda r, n: ListNetLoss(), lambda v, m: (v,)),
    "pairs": (lambda r, n: PairwiseLogisticLoss(), lambda v, m: (v,)),
}
WITHOUT_RELAXATION = {"listnet", "pairs"}
QUICK = "softsort"
RELAXATIONS = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ("laplace", "neuralsort", "cauchy"))]
CASES = [(QUICK, name) for name in LOSSES]
CASES += [
    pytest.param(relaxation, name, marks=pytest.mark.slow)
    for relaxation in ("laplace", "neuralsort", "cauchy")
    for name in LOSSES
    if name not in WITHOUT_RELAXATION
]
DAMPING = 0.7


def relaxed(name):
    return LaplaceSort(0.6) if name == "laplace" else make(name, 1.5)


def lists(seed, count, n):
    """Without ties among the scores: a kink is no place to difference at."""
    scores, values, mask = ragged(seed, count, n)
    return scores + 0.013 * torch.arange(n) * torch.arange(1, n + 1), values, mask


@pytest.mark.parametrize(("relaxation", "name"), CASES)
def test_gradients_and_second_gradients_with_random_masks(relaxation, name):
    make_loss, targets = LOSSES[name]
    for seed in (0, 1):
        scores, values, mask = lists(seed, 5, 4)
        loss, given, leaf = (
            make_loss(relaxed(relaxation), 4),
            targets(values, mask),
            scores.nan_to_num().requires_grad_(),
        )
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda s, loss=loss, given=given, mask=mask: loss(s, *given, mask), leaf, fast_mode=True)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_soft_operations_with_random_masks(relaxation):
    scores, _, mask = lists(2, 5, 4)
    leaf, order = scores.nan_to_num().requires_grad_(), relaxed(relaxation)
    for operation in (soft_sort, soft_rank, lambda s, *a, **o: soft_topk(s, 2, *a, **o)):
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda s, operation=operation: operation(s, order, mask=mask), leaf, fast_mode=True)


@pytest.mark.parametrize(("relaxation", "name"), CASES)
def test_newton_steps_of_a_masked_batch_from_its_lists_one_by_one(relaxation, name):
    """Each list's gradient g and Hessian H alone; of C, averaged over all orders, two eigenvalues are left.

    That of (1, …, 1) is the mean of 1ᵀH1/n over the lists that have items, that of all others the mean of the rest.
    """
    make_loss, targets = LOSSES[name]
    scores, values, mask = lists(0, 6, 5)
    loss, given = make_loss(relaxed(relaxation), 5), targets(values, mask)
    rows = [row for row in range(6) if mask[row].any()]
    value, gradient = torch.zeros(6, dtype=torch.float64), torch.zeros(6, 5, dtype=torch.float64)
    hessians = {}
    for row in rows:
        own = mask[row]
        single = make_loss(relaxed(relaxation), int(own.sum()))
        target = targets(values[row, own], torch.ones(int(own.sum()), dtype=torch.bool))
        alone = scores[row, own].clone().requires_grad_()
        found = single(alone, *target)
        value[row], gradient[row, own] = found.detach(), torch.autograd.grad(found, alone)[0]
        hessians[row] = torch.autograd.functional.hessian(lambda s, one=single, t=target: one(s, *t), alone.detach())
    leaf = scores.clone().requires_grad_()
    found = loss(leaf, *given, mask)
    torch.testing.assert_close(found, value, **CLOSE)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), leaf)[0], gradient, **CLOSE)
    for curvature in ("hessian", "fisher", "sample"):
        if curvature == "sample":
            wanted = gradient / (DAMPING + gradient.square().sum(-1, keepdim=True) / len(rows))
        else:
            own = {row: gradient[row, mask[row]] for row in rows}
            parts = [hessians[row] if curvature == "hessian" else torch.outer(own[row], own[row]) for row in rows]
            common = sum(part.sum() / len(part) for part in parts) / len(parts)
            among = sum(part.trace() - part.sum() / len(part) for part in parts) / sum(len(part) - 1 for part in parts)
            mean = torch.where(mask, (gradient.sum(-1) / mask.sum(-1).clamp(min=1))[:, None], 0.0)
            wanted = (gradient - mean) / (among + DAMPING) + mean / (common + DAMPING)
        leaf = scores.clone().requires_grad_()
        NewtonLoss(loss, curvature, DAMPING)(leaf, *given, mask=mask).backward()
        torch.testing.assert_close(leaf.grad, wanted / len(mask), **CLOSE)
        assert (leaf.grad[~mask] == 0).all()
        order = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(row)) for row in range(6)])
        if relaxation == "cauchy" or name.startswith("top"):
            continue  # a network depends on the order of its wires, and a label is a place
        moved = scores.gather(-1, order).requires_grad_()
        NewtonLoss(loss, curvature, DAMPING)(
            moved, *(t.gather(-1, order) for t in given), mask=mask.gather(-1, order)
        ).backward()
        torch.testing.assert_close(moved.grad, leaf.grad.gather(-1, order), **CLOSE)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("ties", "survival", "top 1 and 2")])
@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
def test_a_list_with_an_unknown_target_is_left_out(name, curvature):
    """NaN has no place in an order; as the target of an item that does not exist it does no harm."""
    loss = LOSSES[name][0](relaxed(QUICK), 4)
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.tensor([[3.0, 1, 2, 0]]).repeat(5, 1)
    mask = torch.ones(5, 4, dtype=torch.bool)
    mask[0, 3] = mask[2, 1] = False
    values[0, 3], values[1, 2], values[3] = torch.nan, torch.nan, torch.nan
    unknown = torch.tensor([False, True, False, True, False])
    assert torch.equal(loss(scores, values, mask).isnan(), unknown)
    found = []
    for targets in (values, values[~unknown]):
        outputs = (scores if targets is values else scores[~unknown]).clone().requires_grad_()
        newton = NewtonLoss(loss, curvature, on_nonfinite="ignore")
        newton(outputs, targets, mask=mask if targets is values else mask[~unknown]).backward()
        found.append(outputs.grad)
    assert not found[0][unknown].any()
    torch.testing.assert_close(found[0][~unknown], found[1], **CLOSE)
