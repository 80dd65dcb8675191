"""Masked lists on a CUDA device: the numbers of the CPU, exactly nothing for what does not exist, and no waiting."""

import pytest
import torch
from test_hessian_sums import LOSSES

from newton_losses import NewtonLoss
from newton_losses.sorting import (
    LaplaceSort,
    NeuralSort,
    SoftSort,
    SortingLoss,
    SortingNetwork,
    kendall,
    mean_reciprocal_rank,
    ndcg,
    soft_rank,
    soft_sort,
    soft_topk,
    spearman,
)
from on_cuda import no_synchronisation

pytestmark = pytest.mark.gpu

RELAXATIONS = [NeuralSort(1.0), SoftSort(0.3), LaplaceSort(0.3), SortingNetwork(None, "odd_even", "cauchy", 3.0)]


def lists(dtype=torch.float64):
    """Seven lists of up to six items, one of them empty, with NaN in the padding."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(7, 6, generator=generator, dtype=dtype)
    values = torch.randint(0, 4, (7, 6), generator=generator)
    mask = torch.rand(7, 6, generator=generator) < 0.7
    mask[0], mask[1] = False, True
    return torch.where(mask, scores, torch.nan), values, mask


def moved(targets):
    return tuple(target.cuda() for target in targets)


def gradient(loss, scores, targets, mask):
    leaf = scores.clone().requires_grad_()
    value = loss(leaf, *targets, mask=mask)
    (found,) = torch.autograd.grad(value.sum(), leaf)
    assert (found[~mask] == 0).all()
    return value.detach().cpu(), found.cpu()


def losses():
    _, values, mask = lists()
    for relaxation in RELAXATIONS:
        yield pytest.param(SortingLoss(relaxation), (values,), id=f"order-{relaxation}")
        for name, make in LOSSES.items():
            loss, targets = make(relaxation, 6, values, mask)
            if relaxation is RELAXATIONS[0] or hasattr(loss, "relaxation"):
                yield pytest.param(loss, targets, id=f"{name}-{relaxation}")


@pytest.mark.parametrize(("loss", "targets"), list(losses()))
def test_losses_equal_those_on_the_cpu(loss, targets):
    scores, _, mask = lists()
    for curvature in (None, "hessian", "fisher", "sample"):
        # One each: a Newton loss keeps the size of the gradients that it has seen.
        here, there = (loss if curvature is None else NewtonLoss(loss, curvature) for _ in range(2))
        expected = gradient(here, scores, targets, mask)
        torch.testing.assert_close(gradient(there, scores.cuda(), moved(targets), mask.cuda()), expected)


@pytest.mark.parametrize("relaxation", RELAXATIONS, ids=str)
def test_operations_equal_those_on_the_cpu(relaxation):
    scores, _, mask = lists()
    for function in (soft_sort, soft_rank, lambda s, *args, **named: soft_topk(s, 2, *args, **named)):
        for hard in (False, True):
            found = function(scores.cuda(), relaxation, mask=mask.cuda(), hard=hard)
            torch.testing.assert_close(found.cpu(), function(scores, relaxation, mask=mask, hard=hard))


def test_metrics_equal_those_on_the_cpu():
    scores, values, mask = lists()
    for metric in (ndcg, mean_reciprocal_rank, spearman, kendall):
        found = metric(scores.cuda(), values.cuda(), mask=mask.cuda())
        torch.testing.assert_close(found.cpu(), metric(scores, values, mask=mask))


@pytest.mark.parametrize("n", [5_000, 100_000])
def test_long_lists(n):
    scores = torch.randn(2, n, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    for relaxation in (LaplaceSort(0.1), LaplaceSort(1e-5)):  # narrow and wide
        here, there = scores.clone().requires_grad_(), scores.cuda().requires_grad_()
        results = [soft_rank(leaf, relaxation) for leaf in (here, there)]
        torch.testing.assert_close(results[1].cpu(), results[0])
        for result in results:
            result.square().mean().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_a_masked_network_does_not_wait_for_the_device():
    scores, values, mask = (x.cuda() for x in lists(torch.float32))
    loss = SortingLoss("cauchy", steepness=3.0)
    newton = NewtonLoss(loss, curvature="hessian")

    def step():
        leaf = scores.clone().requires_grad_()
        (loss(leaf, values, mask).mean() + newton(leaf, values, mask=mask)).backward()

    step()
    with no_synchronisation():
        step()
