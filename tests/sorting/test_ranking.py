"""Grades, partial orders, several k, and the metrics of lists: against scikit-learn, scipy and brute force."""

import math

import pytest
import torch
from sorting_cases import make
from test_masks import CLOSE, nested, ragged

from newton_losses import ArgumentError, ShapeError
from newton_losses.sorting import (
    LaplaceSort,
    ListNetLoss,
    NDCGLoss,
    PairwiseLogisticLoss,
    PartialOrderLoss,
    TopKLoss,
    kendall,
    listed_ranks,
    mean_reciprocal_rank,
    ndcg,
    soft_rank,
    soft_topk,
    spearman,
    survival_ranks,
    tied_ranks,
)

RELAXATIONS = ["neuralsort", "softsort", "logistic", "laplace"]


def relaxation(name, sharpness=2.0):
    return LaplaceSort(1 / sharpness) if name == "laplace" else make(name, sharpness)


def graded(name, **options):
    return [
        NDCGLoss(relaxation(name), **options),
        *([ListNetLoss(), PairwiseLogisticLoss()] if name == "softsort" and not options else []),
    ]


@pytest.mark.parametrize("options", [{}, {"k": 2}, {"gains": "linear", "discounts": 1 / torch.arange(1.0, 7.0)}])
@pytest.mark.parametrize("name", RELAXATIONS)
def test_graded_losses_of_a_masked_batch_are_those_of_its_lists(name, options):
    scores, values, mask = ragged()
    values[4] = 0
    for loss in graded(name, **options):
        leaf = scores.clone().requires_grad_()
        found = loss(leaf, values, mask)
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        assert found[0] == 0
        if isinstance(loss, NDCGLoss):
            assert found[4] == 0
            assert (gradient[4] == 0).all()
        assert (gradient[~mask] == 0).all()
        for row in range(1, 7):
            alone = scores[row, mask[row]].requires_grad_()
            single = loss
            if options.get("k", 0) > len(alone):
                single = NDCGLoss(relaxation(name), k=len(alone))
            value = single(alone, values[row, mask[row]])
            torch.testing.assert_close(found[row], value, **CLOSE)
            torch.testing.assert_close(gradient[row, mask[row]], torch.autograd.grad(value, alone)[0], **CLOSE)
        if not options:
            torch.testing.assert_close(loss(nested(scores, mask), nested(values, mask)), found.detach())


@pytest.mark.parametrize("name", RELAXATIONS)
def test_the_sharp_ndcg_loss_is_one_minus_the_metric(name):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(9, 7, generator=generator, dtype=torch.float64)
    grades = torch.randint(0, 5, (9, 7), generator=generator)
    for k in (None, 1, 3, 7):
        loss = NDCGLoss(relaxation(name, 1e7), k=k)
        torch.testing.assert_close(1 - loss(scores, grades), ndcg(scores, grades, k).double(), atol=1e-5, rtol=0)
        assert loss(scores, grades).min() > -1e-12
    huge = NDCGLoss(relaxation(name))(scores.float(), grades * 1000)
    assert huge.isfinite().all()
    assert (NDCGLoss(relaxation(name, 1e9))(grades + torch.arange(7) / 100, grades) < 1e-6).all()


@pytest.mark.parametrize("metric", [kendall, spearman, mean_reciprocal_rank, ndcg])
def test_the_metric_of_a_list_with_an_unknown_value_is_unknown(metric):
    scores, values = torch.rand(3, 4), torch.tensor([[3.0, 1, 2, 0]]).repeat(3, 1)
    values[1, 2] = values[2, 3] = torch.nan
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[2, 3] = False
    assert metric(scores, values, mask=mask).isnan().tolist() == [False, True, False]
    assert metric(scores, values).isnan().tolist() == [False, True, True]


def test_metrics_are_those_of_scikit_learn_and_scipy():
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    for n in (2, 12):
        scores = torch.randint(0, 6, (10, n), generator=generator) / 3.0
        grades = torch.randint(0, 4, (10, n), generator=generator)
        scores[1], grades[2] = 1.0, 2
        mask = torch.rand(10, n, generator=generator) < 0.8
        mask[:, :2] = True
        for row in range(10):
            s, g = scores[row, mask[row]], grades[row, mask[row]]
            for k in (None, 1, 3):
                if k is not None and k > len(s):
                    continue
                expected = metrics.ndcg_score(g[None].numpy(), s[None].double().numpy(), k=k)
                found = ndcg(scores, grades, k, gains="linear", mask=mask)[row]
                assert found.item() == pytest.approx(expected, abs=1e-6)
                powers = (2**g - 1)[None].numpy()
                assert ndcg(scores, grades, k, mask=mask)[row].item() == pytest.approx(
                    metrics.ndcg_score(powers, s[None].double().numpy(), k=k), abs=1e-6
                )
            for ours, theirs in ((spearman, stats.spearmanr), (kendall, stats.kendalltau)):
                constant = s.unique().numel() == 1 or g.unique().numel() == 1
                expected = 0.0 if constant else theirs(s.numpy(), g.numpy()).statistic
                assert ours(scores, grades, mask=mask)[row].item() == pytest.approx(expected, abs=1e-6)


def test_a_table_of_discounts_is_read_up_to_its_end():
    scores, grades = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[0, 1, 2, 3]])
    table = 1 / torch.log2(2 + torch.arange(4.0))
    hard = LaplaceSort(temperature=1e-3)
    torch.testing.assert_close(NDCGLoss(hard, discounts=table)(scores, grades), NDCGLoss(hard)(scores, grades))
    single = NDCGLoss(hard, discounts=table[:1])(scores[:, :1], grades[:, 1:2])
    assert single.tolist() == [0.0]


def test_the_temperature_of_listnet_divides_the_grades():
    scores, grades = torch.tensor([[0.3, -1.0, 2.0]]), torch.tensor([[2, 0, 1]])
    torch.testing.assert_close(ListNetLoss(temperature=0.25)(scores, grades), ListNetLoss()(scores, 4 * grades))


def test_pairs_in_the_right_order_cost_less():
    scores, grades = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[1, 0], [1, 0]])
    wanted = torch.tensor([math.log1p(math.exp(-2)), math.log1p(math.exp(2))])
    torch.testing.assert_close(PairwiseLogisticLoss()(scores, grades), wanted)
    one_scored_alike = PairwiseLogisticLoss()(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1, 0, 0]]))
    torch.testing.assert_close(one_scored_alike, wanted[:1])  # the mean over two equal pairs


def test_mean_reciprocal_rank_and_the_empty_list():
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 1.0, 0.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    grades = torch.tensor([[0, 2, 1], [1, 0, 0], [0, 0, 0], [1, 0, 0]])
    mask = torch.tensor([[True] * 3, [True] * 3, [True] * 3, [True, False, False]])
    assert mean_reciprocal_rank(scores, grades, mask=mask).tolist() == [0.5, 0.5, 0.0, 1.0]
    assert mean_reciprocal_rank(scores, grades, k=1, mask=mask).tolist() == [0.0, 0.0, 0.0, 1.0]
    nothing = torch.zeros_like(mask)
    for metric in (ndcg, spearman, kendall, mean_reciprocal_rank):
        shaped = metric(*(x.unflatten(0, (2, 2)) for x in (scores, grades)), mask=mask.unflatten(0, (2, 2)))
        assert torch.equal(shaped.flatten(), metric(scores, grades, mask=mask))
        assert metric(scores, grades, mask=nothing).tolist() == [0.0] * 4


@pytest.mark.parametrize("name", RELAXATIONS)
def test_partial_orders_against_the_matrix(name):
    scores, _, mask = ragged()
    times = torch.randint(1, 9, scores.shape, generator=torch.Generator().manual_seed(1)).double()
    events = torch.rand(scores.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    lowest, highest = survival_ranks(times, events, mask=mask)
    for descending in (False, True):
        loss = PartialOrderLoss(relaxation(name), descending=descending)
        leaf = scores.clone().requires_grad_()
        found = loss(leaf, lowest, highest, mask)
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        assert found[0] == 0
        assert (gradient[~mask] == 0).all()
        for row in range(1, 7):
            alone = scores[row, mask[row]]
            columns = relaxation(name).matrix(alone, descending=descending)
            columns = columns / columns.sum(-2, keepdim=True)
            low, high = lowest[row, mask[row]], highest[row, mask[row]]
            again = survival_ranks(times[row, mask[row]], events[row, mask[row]])
            assert torch.equal(torch.stack(again), torch.stack((low, high)))
            mass = [columns[a : b + 1, item].sum() for item, (a, b) in enumerate(zip(low, high, strict=True))]
            torch.testing.assert_close(found[row], -torch.stack(mass).log().mean(), **CLOSE)
        everything = loss(scores[2], torch.zeros(6, dtype=torch.int64), torch.full((6,), 5))
        assert everything.abs() < 1e-12
    leaf = scores[2:3].clone().requires_grad_()
    bounds = lowest[2:3], highest[2:3]
    assert torch.autograd.gradcheck(lambda s: PartialOrderLoss(relaxation(name))(s, *bounds), leaf, fast_mode=True)


def test_ranks_of_ties_of_lists_and_of_survival():
    values = torch.tensor([[2.0, 1.0, 2.0, 5.0]])
    mask = torch.tensor([[True, True, True, False]])
    low, high = tied_ranks(values, mask=mask)
    assert (low[mask].tolist(), high[mask].tolist()) == ([1, 0, 1], [2, 0, 2])
    low, high = listed_ranks(torch.tensor([[1, -1, 0, -1, -1]]))
    assert (low.tolist(), high.tolist()) == ([[1, 2, 0, 2, 2]], [[1, 4, 0, 4, 4]])
    # Every order that the censored times allow has its ranks within the bounds, and the bounds are reached.
    times = torch.tensor([4.0, 1.0, 2.0, 3.0, 2.0])
    events = torch.tensor([True, True, False, True, True])
    low, high = survival_ranks(times, events)
    reached = [set() for _ in times]
    for beyond in (2.5, 3.5, 4.5):
        actual = times.clone()
        actual[2] = beyond
        for item, rank in enumerate(actual.argsort().argsort().tolist()):
            reached[item].add(rank)
    assert [min(ranks) for ranks in reached] == low.tolist()
    assert [max(ranks) for ranks in reached] == high.tolist()


@pytest.mark.parametrize("name", RELAXATIONS)
def test_several_k_and_preselection(name):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 9, generator=generator, dtype=torch.float64)
    labels = torch.arange(8)
    singles = {k: (-TopKLoss(k, relaxation(name))(scores, labels)).exp() for k in (1, 3, 5)}
    mixed = TopKLoss({1: 2.0, 3: 1.0, 5: 1.0}, relaxation(name))(scores, labels)
    torch.testing.assert_close(mixed, -(singles[1] / 2 + singles[3] / 4 + singles[5] / 4).log())
    # With all items preselected nothing changes; with few, the rest is as if it did not exist.
    torch.testing.assert_close(TopKLoss(3, relaxation(name), preselect=9)(scores, labels), -singles[3].log())
    few = TopKLoss(2, relaxation(name, 30.0), preselect=5)(scores, labels)
    kept = scores.scatter(-1, labels[:, None], torch.inf).topk(5).indices
    mask = torch.zeros(8, 9, dtype=torch.bool).scatter(-1, kept, True)
    if name != "logistic":  # a network depends on the order of its wires
        torch.testing.assert_close(few, TopKLoss(2, relaxation(name, 30.0))(scores, labels, mask))
    many = torch.randn(4, 20_000, generator=generator, requires_grad=True)
    TopKLoss({1: 0.5, 5: 0.5}, relaxation(name), preselect=16)(many, labels[:4]).sum().backward()
    assert many.grad.isfinite().all()
    assert (many.grad != 0).sum() <= 64


def test_ranks_are_not_looked_at_where_they_have_no_numbers_yet():
    loss, scores = PartialOrderLoss("softsort"), torch.tensor([[0.3, 0.1, 0.2], [0.5, 0.2, 0.9]])
    ranks = torch.tensor([[0, 0, 2], [0, 1, 1]]), torch.tensor([[1, 1, 2], [0, 2, 2]])
    torch.testing.assert_close(torch.func.vmap(loss)(scores, *ranks), loss(scores, *ranks))


def test_errors_teach():
    scores, grades = torch.zeros(2, 3), torch.ones(2, 3)
    for call, error, words in (
        (lambda: NDCGLoss(k=4)(scores, grades), ArgumentError, "k=4 of n=3 items"),
        (lambda: NDCGLoss()(scores, -grades), ArgumentError, "negative relevance, down to -1. Pass none below 0"),
        (lambda: NDCGLoss(gains=lambda r: r - 5)(scores, grades), ArgumentError, "negative gains, down to -4"),
        (lambda: NDCGLoss(discounts=-torch.ones(3)), ArgumentError, "negative discounts, down to -1"),
        (lambda: ndcg(scores, grades, gains=torch.neg), ArgumentError, "ndcg: negative gains, down to -1"),
        (lambda: soft_topk(scores, 4), ArgumentError, "soft_topk: k=4 of n=3 items. Choose k from 1 to n."),
        (lambda: TopKLoss({1: 0.5, 9: 0.5})(scores, torch.zeros(2).long()), ArgumentError, "k=9 of n=3 items"),
        (lambda: mean_reciprocal_rank(scores, grades, 4), ArgumentError, "mean_reciprocal_rank: k=4 of n=3 items"),
        (lambda: listed_ranks(scores), ArgumentError, "listed_ranks: positions are torch.float32"),
        (lambda: NDCGLoss(gains="cubic"), ArgumentError, "'exponential', 'linear'"),
        (lambda: NDCGLoss(discounts=torch.ones(2))(scores, grades), ShapeError, "2 discounts for lists of n=3"),
        (lambda: NDCGLoss()(scores, grades[:, :2]), ShapeError, "relevance of shape (2, 2) came"),
        (lambda: ndcg(scores, grades, 0), ArgumentError, "at least 1"),
        (lambda: NDCGLoss(k=2.5), ArgumentError, "k is 2.5. It is a whole number, at least 1"),
        (lambda: NDCGLoss(discounts=[1.0, 0.5]), ArgumentError, "a function of ranks or a tensor (n,)"),
        (lambda: TopKLoss([1, 5]), ArgumentError, "come with weights: {1: 0.5, 5: 0.5}"),
        (lambda: TopKLoss({}), ArgumentError, "empty distribution"),
        (lambda: TopKLoss({5: 1.0}, preselect=3), ArgumentError, "k=5 of 3 preselected"),
        (lambda: TopKLoss({2: -1.0}), ArgumentError, "not a positive finite number"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert words in str(caught.value)
    loss = PartialOrderLoss("softsort")
    for lowest, highest, words in (
        ([0, 2, 1], [0, 1, 2], "above the highest rank of the same item"),
        ([0, 1, 1], [0, 1, 3], "from 0 to one less than the number of items"),
        ([0, 1, 1], [0, 1, 1], "contradict each other"),
        ([0, 0, 0], [1, 1, 1], "contradict each other"),
    ):
        with pytest.raises(ArgumentError, match=words):
            loss(torch.zeros(3), torch.tensor(lowest), torch.tensor(highest))
    with pytest.raises(ArgumentError, match="contradict each other"):
        loss(torch.zeros(300), torch.zeros(300, dtype=torch.int64), torch.full((300,), 298))
    free = torch.zeros(2, 300, dtype=torch.int64), torch.full((2, 300), 299)
    assert loss(torch.zeros(2, 300), *free).abs().max() < 1e-5
    lowest, highest = torch.zeros(256, dtype=torch.int64), torch.full((256,), 255)
    lowest[:3], highest[:3] = 100, 101  # the longest list of which all ranks are checked
    with pytest.raises(ArgumentError, match="contradict each other"):
        loss(torch.zeros(256), lowest, highest)
    with pytest.raises(ArgumentError, match="whole numbers"):
        loss(torch.zeros(3), torch.zeros(3), torch.zeros(3))
    with pytest.raises(ArgumentError, match="a time is NaN"):
        survival_ranks(torch.tensor([1.0, torch.nan]), torch.tensor([True, True]))
    with pytest.raises(ArgumentError, match="Pass booleans"):
        survival_ranks(torch.zeros(3), torch.ones(3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_ranks_of_nested_tensors_are_nested():
    scores, values, mask = ragged()
    event = values > 1
    as_one = nested(values, mask), nested(scores.nan_to_num(), mask), nested(event, mask)
    for found, expected in (
        (tied_ranks(as_one[0]), tied_ranks(values, mask=mask)),
        (survival_ranks(*as_one[1:]), survival_ranks(scores.nan_to_num(), event, mask=mask)),
    ):
        loss = PartialOrderLoss("softsort", temperature=1.0)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.values(), other[mask])
        torch.testing.assert_close(loss(as_one[1], *found), loss(scores, *expected, mask))
    with pytest.raises(ArgumentError, match="survival_ranks: a nested tensor says itself"):
        survival_ranks(*as_one[1:], mask=mask)


def test_survival_ranks_against_all_pairs():
    generator = torch.Generator().manual_seed(9)
    time = torch.randint(0, 6, (40, 7), generator=generator).double()
    event = torch.rand(40, 7, generator=generator) < 0.6
    mask = torch.rand(40, 7, generator=generator) < 0.8
    lowest, highest = survival_ranks(time, event, mask=mask)
    for row, item in mask.nonzero().tolist():
        others = [k for k in range(7) if mask[row, k] and k != item]
        t, e = time[row], event[row]
        is_before = [e[k] and (t[k] < t[item] or (t[k] == t[item] and not e[item])) for k in others]
        is_after = [e[item] and (t[k] > t[item] or (t[k] == t[item] and not e[k])) for k in others]
        assert lowest[row, item] == sum(is_before)
        assert highest[row, item] == len(others) - sum(is_after)
    assert (lowest[~mask] == 0).all()
    assert (highest[~mask] == 0).all()


def test_long_lists_need_no_matrix():
    """10⁵ items, of which a matrix would take 80 GB."""
    n = 100_000
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(n, generator=generator, requires_grad=True)
    grades = torch.randint(0, 5, (n,), generator=generator)
    times = torch.rand(n, generator=generator)
    low, high = tied_ranks(times)
    for loss in (
        NDCGLoss("laplace", k=10)(scores, grades),
        PartialOrderLoss("laplace")(scores, low, high),
        PartialOrderLoss("laplace")(scores, *survival_ranks(times, times > 0.5)),
        TopKLoss(10, "laplace")(scores, torch.tensor(3)),
        soft_rank(scores, "laplace").std(),
    ):
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient.isfinite().all()
        assert gradient.any()
    assert math.isfinite(spearman(scores, times))


def test_a_table_of_discounts_has_a_slope_at_its_end():
    """In float32 the rank of an item that is far below the others is a whole number, and its slope is not zero."""
    loss, found = NDCGLoss(LaplaceSort(0.1), discounts=torch.tensor([1.0, 0.5])), []
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor([[0.0, 2.0]], dtype=dtype, requires_grad=True)
        loss(scores, torch.tensor([[1, 0]])).sum().backward()
        found.append(scores.grad.double())
    assert found[1].all()
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


def test_times_in_seconds_since_a_long_time():
    time, seen = 2**40 + torch.tensor([2, 0, 1]), torch.ones(3, dtype=torch.bool)
    assert [ranks.tolist() for ranks in survival_ranks(time, seen)] == [[2, 0, 1]] * 2


@pytest.mark.parametrize("k", [None, 1])
def test_a_score_that_is_no_number_finds_nothing(k):
    scores, relevance = torch.tensor([[torch.nan, 1.0], [2.0, 1.0]]), torch.tensor([[1, 0], [1, 0]])
    assert mean_reciprocal_rank(scores, relevance, k).tolist() == [0.0, 1.0]


def test_two_items_cannot_both_be_first():
    lowest, highest = torch.tensor([[0, 0, 1]]), torch.tensor([[0, 0, 2]])
    with pytest.raises(ArgumentError, match="contradict each other"):
        PartialOrderLoss("softsort")(torch.zeros(1, 3), lowest, highest)


def test_a_table_of_discounts_is_interpolated_between_neighbours():
    scores = torch.tensor([[0.3, -0.2, 0.5, 0.1, 0.0]], dtype=torch.float64)
    relevance = torch.tensor([[0, 2, 1, 0, 3]])
    table, line = (
        NDCGLoss(LaplaceSort(0.3), discounts=discounts)(scores, relevance)
        for discounts in (torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2]), lambda rank: 1 - 0.2 * rank)
    )
    torch.testing.assert_close(table, line, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "scores",
    [
        torch.tensor([0, 1, 2, 3], dtype=torch.uint8),
        torch.tensor([-128, 0, 5, 7], dtype=torch.int8),
        torch.tensor([-(2**63), 0, 5, 7]),
        torch.tensor([False, True, True, True]),
    ],
    ids=str,
)
def test_metrics_of_whole_numbers_know_the_lowest(scores):
    """Its negative is not the highest."""
    relevant, plain = torch.tensor([[1, 0, 0, 0]]), torch.unique(scores, return_inverse=True)[1].double()
    for metric in (ndcg, mean_reciprocal_rank):
        assert metric(scores[None], relevant) == metric(plain[None], relevant)
