"""The losses, soft functions and metrics: against brute force, and their behaviour at the boundary."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from sorting_cases import NAMES, make, scores_and_values

from newton_losses import ArgumentError, NewtonLoss, ShapeError
from newton_losses.curvature import Expandable
from newton_losses.sorting import (
    SortingLoss,
    SortingNetwork,
    SpearmanLoss,
    TopKLoss,
    element_wise_match,
    exact_match,
    soft_rank,
    soft_sort,
    soft_topk,
    target_matrix,
)
from on_cuda import no_synchronisation


@pytest.mark.parametrize("numerics", ["stable", "reference"])
def test_sorting_loss_is_the_peers_network_under_torchs_cross_entropy(numerics):
    diffsort = pytest.importorskip("diffsort")
    scores, values = scores_and_values(20, 5)
    matrix = diffsort.DiffSortNet("odd_even", 5, steepness=3.0, distribution="cauchy")(scores)[1].mT
    goal = torch.nn.functional.one_hot(values.argsort(-1), 5).double()
    expected = torch.nn.functional.binary_cross_entropy(matrix, goal)
    loss = SortingLoss("cauchy", steepness=3.0, numerics=numerics)
    torch.testing.assert_close(loss(scores, values).mean(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_sorting_loss_in_probability_space(name):
    scores, values = scores_and_values(20, 5)
    matrix, goal = make(name).matrix(scores), target_matrix(values, torch.float64)
    expected = torch.nn.functional.binary_cross_entropy(matrix, goal, reduction="none").mean((-2, -1))
    torch.testing.assert_close(SortingLoss(make(name))(scores, values), expected)


@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
@pytest.mark.parametrize("name", NAMES)
def test_reference_loss_of_scores_that_are_no_numbers_is_none(name, curvature):
    """torch's function would refuse the whole batch, and on CUDA end the process; the other samples are not touched."""
    scores, values = scores_and_values(6, 4)
    loss = SortingLoss(make(name), numerics="reference")
    bad = scores.clone()
    bad[2, 1] = torch.nan
    others = torch.tensor([0, 1, 3, 4, 5])
    found = loss(bad, values)
    assert found[2].isnan()
    assert torch.equal(found[others], loss(scores, values)[others])
    theirs = loss.expand(scores[others], values[others], curvature=curvature)
    ours = loss.expand(bad, values, curvature=curvature)
    torch.testing.assert_close(ours.gradient[others], theirs.gradient)
    torch.testing.assert_close(ours.curvature.dense(), theirs.curvature.dense())


def test_order_comes_from_values_or_ranks():
    scores, values = scores_and_values(6, 4)
    loss = SortingLoss("softsort", temperature=1.0)
    expected = loss(scores, values)
    torch.testing.assert_close(loss(scores, values.double() ** 3 - 7), expected)
    torch.testing.assert_close(loss(scores, ranks=values.argsort(-1).argsort(-1)), expected)
    with pytest.raises(ArgumentError, match="either"):
        loss(scores)
    with pytest.raises(ArgumentError, match="either"):
        loss(scores, values, ranks=values)


def test_ties_share_ranks_or_are_masked_whatever_their_places():
    scores = torch.randn(1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, order = torch.tensor([[1, 2, 2, 0]]), torch.tensor([0, 2, 1, 3])
    for ties in ("share", "mask"):
        loss = SortingLoss("neuralsort", ties=ties)
        torch.testing.assert_close(loss(scores, values), loss(scores[:, order], values[:, order]))
    matrix = SortingLoss("neuralsort").relaxation.matrix(scores)
    goal = target_matrix(values, torch.float64)
    cells = torch.nn.functional.binary_cross_entropy(matrix, goal, reduction="none")
    masked = cells[(goal == 0) | (goal == 1)].mean()
    torch.testing.assert_close(SortingLoss("neuralsort", ties="mask")(scores, values), masked.unsqueeze(0))
    all_tied = SortingLoss("neuralsort", ties="mask")(scores, torch.zeros(1, 4))
    assert all_tied.item() == 0


def test_leading_shapes_and_the_protocol_of_an_expansion():
    scores, values = scores_and_values(6, 4)
    loss = SortingLoss("logistic")
    assert isinstance(loss, Expandable)
    nested = loss(scores.reshape(2, 3, 4), values.reshape(2, 3, 4))
    torch.testing.assert_close(nested, loss(scores, values).reshape(2, 3))
    torch.testing.assert_close(loss(scores[0], values[0]), loss(scores, values)[0])
    with pytest.raises(ShapeError, match="not \\(N, n\\)"):
        loss.expand(scores[0], values[0], curvature=None)
    by_default, hessian = loss.expand(scores, values), loss.expand(scores, values, curvature="hessian")
    assert torch.equal(by_default.curvature.dense(), hessian.curvature.dense())
    with pytest.raises(ArgumentError, match="'fisher' or None"):
        loss.expand(scores, values, curvature="gauss")
    with pytest.raises(ShapeError, match="values of shape"):
        loss(scores, values[:, :3])


@pytest.mark.parametrize("name", ["neuralsort", "softsort", "logistic"])
def test_half_precision_and_autocast(name):
    scores, values = scores_and_values(6, 4)
    loss = SortingLoss(name)
    half = scores.to(torch.bfloat16)
    expected = loss(half.float(), values)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss(half, values), expected)
        expansion = loss.expand(half, values, curvature="hessian")
    assert expansion.curvature.dense().dtype == torch.float32
    wide = loss.expand(half.float(), values, curvature="hessian")
    torch.testing.assert_close(expansion.curvature.dense(), wide.curvature.dense())


def test_names_and_their_parameters():
    assert isinstance(SortingLoss("gaussian", steepness=3.0).relaxation, SortingNetwork)
    for arguments, word in (
        ({"algorithm": "bubblesort"}, "neuralsort"),
        ({"algorithm": "logistic", "temperature": 0.1}, "steepness=10"),
        ({"algorithm": "softsort", "steepness": 10.0}, "temperature"),
        ({"algorithm": make("softsort"), "temperature": 0.1}, "already"),
        ({"algorithm": "softsort", "numerics": "exact"}, "reference"),
        ({"algorithm": "softsort", "ties": "ignore"}, "mask"),
    ):
        with pytest.raises(ArgumentError, match=word):
            SortingLoss(**arguments)
    copy.deepcopy(SortingLoss(SortingNetwork(4, "bitonic")))


@pytest.mark.parametrize("name", NAMES)
def test_soft_functions_in_the_sharp_limit(name):
    scores, _ = scores_and_values(7, 6)
    sharp = make(name, 1e9)
    close = {"rtol": 0, "atol": 1e-4}
    torch.testing.assert_close(soft_sort(scores, sharp), scores.sort(-1).values, **close)
    torch.testing.assert_close(
        soft_sort(scores, sharp, dim=0, descending=True), scores.sort(0, descending=True).values, **close
    )
    ranks = scores.argsort(-1).argsort(-1).double()
    torch.testing.assert_close(soft_rank(scores, sharp), ranks, **close)
    torch.testing.assert_close(soft_rank(scores, sharp, descending=True), 5 - ranks, **close)
    for largest in (True, False):
        chosen = torch.zeros_like(scores).scatter(-1, scores.topk(2, largest=largest).indices, 1.0)
        torch.testing.assert_close(soft_topk(scores, 2, sharp, largest=largest), chosen, **close)
    soft = soft_topk(scores.to(torch.bfloat16), 3, make(name))
    assert soft.dtype == torch.bfloat16
    with pytest.raises(ArgumentError, match="k=7 of n=6"):
        soft_topk(scores, 7, sharp)


@pytest.mark.parametrize("name", NAMES)
def test_top_k_loss(name):
    scores, _ = scores_and_values(7, 6)
    labels = torch.arange(7) % 6
    columns = make(name).matrix(scores, descending=True)
    columns = columns / columns.sum(-2, keepdim=True)
    for k in (1, 3, 6):
        expected = -columns[torch.arange(7), :k, labels].sum(-1).log()
        torch.testing.assert_close(TopKLoss(k, make(name))(scores, labels), expected)
    with pytest.raises(ShapeError, match="one label"):
        TopKLoss(1, make(name))(scores, labels[:3])
    with pytest.raises(ArgumentError, match="k=7"):
        TopKLoss(7, make(name))(scores, labels)


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_how_many_are_the_largest_is_a_number_of_items(k):
    """0 was refused, and told as the least that will do."""
    for call in (lambda: soft_topk(torch.zeros(3), k), lambda: TopKLoss(k)(torch.zeros(1, 3), torch.tensor([0]))):
        with pytest.raises(ArgumentError, match=r"k is .* at least 1"):
            call()


@pytest.mark.parametrize(
    "loss", [SortingLoss("softsort"), SpearmanLoss(), TopKLoss(1)], ids=lambda loss: type(loss).__name__
)
def test_integers_are_no_scores(loss):
    """Spearman's loss took them, although they can learn nothing, and the others did not."""
    scores, order = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3]])
    name = type(loss).__name__
    with pytest.raises(ArgumentError, match=rf"{name}: scores have dtype torch.int64\. Pass floating-point scores\."):
        loss(scores, order[:, 0] if name == "TopKLoss" else order)


def test_spearman_loss_is_one_minus_the_correlation_of_ranks():
    scores, values = scores_and_values(7, 6)
    ranks = torch.stack((scores.argsort(-1).argsort(-1), values)).double()
    expected = torch.stack([1 - torch.corrcoef(ranks[:, row])[0, 1] for row in range(7)])
    torch.testing.assert_close(SpearmanLoss("logistic", steepness=1e9)(scores, values), expected)
    assert SpearmanLoss()(torch.zeros(1, 1), torch.zeros(1, 1)).item() == 0


def test_metrics():
    scores = torch.tensor([[0.1, 0.4, 0.2, 0.9, 0.8], [0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0]])
    values = torch.tensor([[1, 3, 2, 9, 8], [1, 2, 3, 5, 4], [1, 2, 3, 4, 5]])
    assert exact_match(scores, values).tolist() == [1, 0, 0]
    torch.testing.assert_close(element_wise_match(scores, values), torch.tensor([1.0, 0.6, 0.0]))
    assert exact_match(scores, values, first=3).tolist() == [1, 1, 0]
    tied = torch.tensor([[1, 2, 3, 4, 4]])
    assert exact_match(scores[1:2], tied).item() == 1
    assert exact_match(scores[1:2].flip(-1), tied.flip(-1)).item() == 1
    assert exact_match(torch.full((1, 2), torch.nan), torch.tensor([[1, 2]])).item() == 0


@pytest.mark.parametrize("metric", [exact_match, element_wise_match])
def test_metrics_of_the_first_items_take_a_number_of_items(metric):
    """The first 0 of a reversed order were in order."""
    scores, values = torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 5, 9]])
    assert metric(scores, values, first=np.int64(3)) == metric(scores, values)
    for first in (0, -1, 1.5, "3", torch.tensor(2.0)):
        with pytest.raises(ArgumentError, match="It is a whole number, at least 1"):
            metric(scores, values, first=first)
    with pytest.raises(ArgumentError, match="first=4 of n=3 items"):
        metric(scores, values, first=4)


def test_gradient_descent_on_the_scores_sorts_them():
    scores, values = scores_and_values(4, 6)
    for name in ("neuralsort", "cauchy"):
        loss, leaf = SortingLoss(make(name)), scores.clone().requires_grad_()
        optimizer = torch.optim.Adam([leaf], lr=0.1)
        history = []
        for _ in range(150):
            optimizer.zero_grad()
            value = loss(leaf, values).mean()
            value.backward()
            optimizer.step()
            history.append(value.item())
        assert exact_match(leaf.detach(), values).all(), name
        assert all(late < early for early, late in pairwise(history[::50])), name


@pytest.mark.parametrize("name", ["softsort", "logistic"])
def test_compile(name):
    scores, values = scores_and_values(6, 3, dtype=torch.float32)
    loss = SortingLoss(name)
    # The eager backend runs what was captured: whole graphs, without the wait for a compiler.
    compiled = torch.compile(lambda s, v: loss(s, v).mean(), fullgraph=True, backend="aot_eager")
    leaf = scores.clone().requires_grad_()
    compiled(leaf, values).backward()
    torch.testing.assert_close(leaf.grad * 6, loss.expand(scores, values, curvature=None).gradient)
    expand = torch.compile(
        lambda s, v: loss.expand(s, v, curvature="hessian").curvature.dense(), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(expand(scores, values), loss.expand(scores, values).curvature.dense())


@pytest.mark.slow
@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
@pytest.mark.parametrize("numerics", ["stable", "reference"])
@pytest.mark.parametrize("name", ["softsort", "neuralsort", "logistic", "cauchy"])
def test_what_the_compiler_makes_of_a_newton_loss_is_the_same(name, numerics, curvature):
    """torch's own compiler, whose code for CPUs has been seen to lose gradients and to break the heap."""
    scores, values = scores_and_values(20, 5, dtype=torch.float32)
    loss = NewtonLoss(SortingLoss(name, numerics=numerics), curvature, damping=1.0)
    results = []
    for function in (loss, torch.compile(loss)):
        leaf = scores.clone().requires_grad_()
        value = function(leaf, values)
        value.backward()
        results.append((value.detach(), leaf.grad))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cuda_equals_cpu_and_can_be_captured_without_synchronisation(name):
    scores, values = scores_and_values(6, 5, dtype=torch.float32)
    relaxation = make(name, n=5)
    loss = SortingLoss(copy.deepcopy(relaxation)).cuda()
    expected = SortingLoss(relaxation).expand(scores, values, curvature="hessian")
    scores, values = scores.cuda(), values.cuda()
    with no_synchronisation():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                loss.expand(scores, values, curvature="hessian")
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            expansion = loss.expand(scores, values, curvature="hessian")
        graph.replay()
    torch.testing.assert_close(expansion.value.cpu(), expected.value)
    torch.testing.assert_close(expansion.gradient.cpu(), expected.gradient)
    torch.testing.assert_close(expansion.curvature.dense().cpu(), expected.curvature.dense(), rtol=1e-4, atol=1e-6)
