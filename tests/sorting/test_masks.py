"""Lists of different lengths: a padded batch is the lists one by one, and padding is worth nothing."""

import pytest
import torch
from sorting_cases import NAMES, make

from newton_losses import ArgumentError, NewtonLoss, ShapeError, sorting
from newton_losses.curvature import Exchangeable, Masked
from newton_losses.sorting import (
    SortingLoss,
    SortingNetwork,
    SpearmanLoss,
    TopKLoss,
    element_wise_match,
    exact_match,
    neuralsort,
    pad_lists,
    soft_rank,
    soft_sort,
    soft_topk,
    target_matrix,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore:The PyTorch API of nested tensors:UserWarning"
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def ragged(seed=0, count=7, n=6, dtype=torch.float64):
    """Scores with NaN where nothing exists, values with ties, and a mask with an empty, a single and a full list."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, n, generator=generator, dtype=torch.float64).to(dtype)
    values = torch.randint(0, 4, (count, n), generator=generator)
    mask = torch.rand(count, n, generator=generator) < 0.6
    mask[0], mask[1], mask[2] = False, torch.arange(n) == 3, True
    scores[3, mask[3]] = 0.25
    return torch.where(mask, scores, torch.nan), values, mask


def one_by_one(function, scores, values, mask):
    """What the function gives for each list alone."""
    return [function(s[m], v[m]) for s, v, m in zip(scores, values, mask, strict=True) if m.any()]


@pytest.mark.parametrize("ties", ["share", "mask"])
@pytest.mark.parametrize("numerics", ["stable", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_a_masked_batch_is_its_lists_one_by_one(name, numerics, ties):
    scores, values, mask = ragged()
    loss = SortingLoss(make(name, 2.0), numerics=numerics, ties=ties)
    leaf = scores.clone().requires_grad_()
    found = loss(leaf, values, mask)
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    assert found[0] == 0
    assert (gradient[~mask] == 0).all()
    alone = [s[m].clone().requires_grad_() for s, m in zip(scores, mask, strict=True) if m.any()]
    wanted = [loss(s, v[m]) for s, v, m in zip(alone, values[1:], mask[1:], strict=True)]
    torch.testing.assert_close(found[1:], torch.stack(wanted), **CLOSE)
    pieces = torch.autograd.grad(torch.stack(wanted).sum(), alone)
    torch.testing.assert_close(gradient[mask], torch.cat(pieces), **CLOSE)
    # Without a graph other code computes the value, and closed forms compute the gradient.
    torch.testing.assert_close(loss(scores, values, mask), found.detach(), **CLOSE)
    expansion = loss.expand(scores, values, mask, curvature=None)
    torch.testing.assert_close(expansion.gradient, gradient, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_padding_costs_no_digits_far_from_zero(name):
    """What stands in for padding is near the list's own scores: their differences are all that counts."""
    scores, values, mask = ragged(dtype=torch.float32)
    scores = (8 * scores).round() + 2**23  # whole numbers, with no digit to spare
    for function in (SortingLoss(make(name, 2.0)), lambda s, v, m=None: soft_sort(s, make(name, 2.0), mask=m)):
        leaf = scores.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf, values, mask).sum(), leaf)
        for row in range(1, 7):
            m = mask[row]
            alone = scores[row, m].requires_grad_()
            (wanted,) = torch.autograd.grad(function(alone, values[row, m]).sum(), alone)
            torch.testing.assert_close(gradient[row, m], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_soft_operations_of_a_masked_batch(name):
    scores, _, mask = ragged()
    relaxation = make(name, 2.0)
    lengths = mask.sum(-1)
    for descending in (False, True):
        ordered = soft_sort(scores, relaxation, descending=descending, mask=mask)
        ranks = soft_rank(scores, relaxation, descending=descending, mask=mask)
        top = soft_topk(scores, 2, relaxation, largest=descending, mask=mask)
        matrix = relaxation.matrix(scores, descending=descending, mask=mask)
        for row, length in enumerate(lengths.tolist()):
            if length == 0:
                continue
            alone = scores[row, mask[row]]
            inside = torch.arange(6) < length
            torch.testing.assert_close(
                ordered[row, :length], soft_sort(alone, relaxation, descending=descending), **CLOSE
            )
            torch.testing.assert_close(
                ranks[row, mask[row]], soft_rank(alone, relaxation, descending=descending), **CLOSE
            )
            torch.testing.assert_close(
                top[row, mask[row]], soft_topk(alone, min(2, length), relaxation, largest=descending), **CLOSE
            )
            torch.testing.assert_close(
                matrix[row][inside][:, mask[row]], relaxation.matrix(alone, descending=descending), **CLOSE
            )
            assert (matrix[row, ~inside] == 0).all()
            assert (matrix[row][:, ~mask[row]] == 0).all()
        assert (ordered[torch.arange(6) >= lengths[:, None]] == 0).all()
        for items in (ranks, top):
            assert (items[~mask] == 0).all()
    moved = soft_rank(scores.mT, relaxation, dim=0, mask=mask.mT)
    torch.testing.assert_close(moved.mT, soft_rank(scores, relaxation, mask=mask))
    if name in ("softsort", "neuralsort"):
        logs = relaxation.log_matrix(scores, mask=mask)
        torch.testing.assert_close(logs.exp(), relaxation.matrix(scores, mask=mask))


@pytest.mark.parametrize("name", ["neuralsort", "softsort-2", "logistic", "cauchy"])
def test_ranking_losses_and_metrics_of_a_masked_batch(name):
    scores, values, mask = ragged()
    spearman = SpearmanLoss(make(name))
    torch.testing.assert_close(
        spearman(scores, values, mask)[1:], torch.stack(one_by_one(spearman, scores, values, mask)), **CLOSE
    )
    labels = torch.tensor([0, 3, 1, *(int(m.nonzero()[0]) for m in mask[3:])])
    found = TopKLoss(2, make(name))(scores, labels, mask)
    for row in range(1, 7):
        alone, place = scores[row, mask[row]], mask[row, : labels[row]].sum()
        wanted = TopKLoss(min(2, len(alone)), make(name))(alone, place)
        torch.testing.assert_close(found[row], wanted, **CLOSE)
    assert found[0] == spearman(scores, values, mask)[0] == 0
    clean = scores.nan_to_num()
    for metric in (exact_match, element_wise_match):
        torch.testing.assert_close(
            metric(clean, values, mask=mask)[1:], torch.stack(one_by_one(metric, scores, values, mask))
        )
        assert metric(clean, values, mask=mask)[0] == 1


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["neuralsort", "softsort", "softsort-2", "logistic"])
def test_gradients_and_second_gradients_with_random_masks(name, seed):
    scores, values, mask = ragged(seed, count=5, n=4)
    scores = scores + 0.01 * torch.arange(4)  # no ties: a kink is no place to difference at
    leaf = scores.nan_to_num().requires_grad_()
    for function in (
        lambda s: SortingLoss(make(name, 1.5))(s, values, mask),
        lambda s: SpearmanLoss(make(name, 1.5))(s, values, mask),
        lambda s: soft_sort(s, make(name, 1.5), mask=mask),
    ):
        assert torch.autograd.gradcheck(function, leaf, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, leaf, fast_mode=True)


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
@pytest.mark.parametrize("name", ["neuralsort", "softsort", "softsort-2", "logistic", "cauchy"])
def test_exchangeable_curvature_of_a_masked_batch_against_every_permutation(name, curvature):
    """Two numbers from brute force: each list's Hessian in rotated coordinates, summed over all lists."""
    scores, values, mask = ragged()
    loss = SortingLoss(make(name, 2.0))
    form = loss.expand(scores, values, mask, curvature=curvature, exchangeable=True).curvature
    assert isinstance(form, Exchangeable)
    within, freedom = 0.0, 0
    for s, v, m in zip(scores[1:], values[1:], mask[1:], strict=True):
        hessian = torch.func.hessian(lambda x, v=v[m]: loss._value(*loss._prepare(x[None], v[None]))[0])(s[m])
        gradient = loss.expand(s[m][None], v[m][None], curvature=None).gradient[0]
        matrix = hessian if curvature == "hessian" else torch.outer(gradient, gradient)
        torch.testing.assert_close(matrix.sum(), torch.zeros((), dtype=torch.float64), atol=1e-9, rtol=0)
        within, freedom = within + matrix.trace(), freedom + len(matrix) - 1
    torch.testing.assert_close(form.among, within / freedom, **CLOSE)
    assert form.common.abs() < 1e-12


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
@pytest.mark.parametrize("name", ["softsort", "logistic"])
def test_the_newton_gradient_knows_nothing_of_the_padding(name, curvature):
    scores, values, mask = ragged()

    def gradient(scores, values, mask):
        leaf = scores.clone().requires_grad_()
        NewtonLoss(SortingLoss(make(name)), curvature)(leaf, values, mask).backward()  # one that knows no other batch
        return leaf.grad

    found = gradient(scores, values, mask)
    assert found[~mask].eq(0).all()
    assert found.isfinite().all()
    wider = torch.nn.functional.pad
    again = gradient(wider(scores, (2, 3), value=7.0), wider(values, (2, 3)), wider(mask, (2, 3)))
    torch.testing.assert_close(again[:, 2:-3], found, **CLOSE)
    # A batch of one list is that list without a mask.
    row = 2 if name == "softsort" else 5
    alone = gradient(scores[row, mask[row]][None], values[row, mask[row]][None], None)
    torch.testing.assert_close(
        gradient(scores[row : row + 1], values[row : row + 1], mask[row : row + 1])[0, mask[row]], alone[0], **CLOSE
    )


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
@pytest.mark.parametrize("name", ["neuralsort", "softsort", "softsort-2"])
def test_stored_order_does_not_matter(name, curvature):
    scores, values, mask = ragged()
    orders = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(row)) for row in range(7)])
    for loss in (SortingLoss(make(name)), SortingLoss(make(name), numerics="reference")):
        newton = NewtonLoss(loss, curvature)
        results = []
        for index in (torch.arange(6).expand(7, 6), orders):
            leaf = scores.gather(-1, index).requires_grad_()
            value = newton(leaf, values.gather(-1, index), mask.gather(-1, index))
            value.backward()
            results.append((value.detach(), leaf.grad.gather(-1, index.argsort(-1))))
        torch.testing.assert_close(*results, **CLOSE)


def test_without_exchange_the_curvature_is_over_the_pairs_that_exist():
    scores, values, mask = ragged()
    loss = SortingLoss("softsort")
    for curvature in ("hessian", "fisher"):
        form = loss.expand(scores, values, mask, curvature=curvature).curvature
        assert isinstance(form, Masked)
        total, pairs = torch.zeros(2, 6, 6, dtype=torch.float64)
        for s, v, m in zip(scores, values, mask, strict=True):
            if m.any():
                one = loss.expand(s[m][None], v[m][None], curvature=curvature).curvature
                total[m.outer(m)] += one.dense().flatten()
                pairs += m.outer(m)
        exist = pairs.diagonal().sqrt()
        behind = pairs if curvature == "hessian" else exist.outer(exist)  # a Fisher's outputs have scales of their own
        torch.testing.assert_close(form.matrix, total / behind.clamp(min=1), **CLOSE)


def nested(scores, mask):
    return torch.nested.nested_tensor_from_jagged(
        scores[mask], torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(-1).cumsum(0)])
    )


def test_nested_tensors_are_masked_ones():
    scores, values, mask = ragged()
    leaf = scores[mask].requires_grad_()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(-1).cumsum(0)])
    lists = torch.nested.nested_tensor_from_jagged(leaf, offsets)
    loss = SortingLoss("neuralsort")
    found = loss(lists, nested(values, mask))
    torch.testing.assert_close(found, loss(scores, values, mask))
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    masked = scores.clone().requires_grad_()
    torch.testing.assert_close(gradient, torch.autograd.grad(loss(masked, values, mask).sum(), masked)[0][mask])
    ranks = soft_rank(lists, "softsort")
    assert ranks.is_nested
    torch.testing.assert_close(ranks.values(), soft_rank(scores, "softsort", mask=mask)[mask])
    ordered = soft_sort(lists, "softsort")
    torch.testing.assert_close(ordered.values()[:1], scores[1, 3:4])
    torch.testing.assert_close(
        exact_match(lists, nested(values, mask)), exact_match(scores.nan_to_num(), values, mask=mask)
    )
    padded, exists = pad_lists(lists)
    assert exists.sum(-1).tolist() == mask.sum(-1).tolist()
    assert torch.equal(padded[exists], leaf)


def test_hard_values_with_soft_gradients():
    scores = torch.tensor([[3.0, 1.0, 2.0, 2.0], [5.0, 9.0, 7.0, 7.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    for function, expected in (
        (lambda **options: soft_sort(scores, "softsort", **options), [[1, 2, 2, 3], [5, 9, 0, 0]]),
        (lambda **options: soft_sort(scores, descending=True, **options), [[3, 2, 2, 1], [9, 5, 0, 0]]),
        (lambda **options: soft_rank(scores, **options), [[3, 0, 1.5, 1.5], [0, 1, 0, 0]]),
        (lambda **options: soft_topk(scores, 2, **options), [[1, 0, 0.5, 0.5], [1, 1, 0, 0]]),
    ):
        hard, soft = function(mask=mask, hard=True), function(mask=mask)
        assert hard.tolist() == torch.tensor(expected).tolist()
        weights = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(
            *(torch.autograd.grad((result * weights).sum(), scores)[0] for result in (hard, soft))
        )


def test_long_lists_are_ranked_without_all_pairs():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 300, (3, 600), generator=generator)
    mask = torch.rand(3, 600, generator=generator) < 0.7
    for kind in (torch.int64, torch.float32):
        ours = target_matrix(values.to(kind), torch.float64, mask)
        for row in range(3):
            alone = values[row, mask[row]]
            wanted = target_matrix(alone, torch.float64)
            torch.testing.assert_close(ours[row, : len(alone)][:, mask[row]], wanted)
        assert (ours.sum((-1, -2)).round() == mask.sum(-1)).all()
    bad = values.float().clone()
    bad[0, 5] = torch.nan
    assert exact_match(bad, bad).tolist() == [0, 1, 1]


def test_errors_teach():
    scores, values, mask = ragged()
    loss = SortingLoss("softsort")
    with pytest.raises(ArgumentError, match=r"the mask is torch.float32\. Pass a boolean"):
        loss(scores, values, mask.float())
    with pytest.raises(ShapeError, match=r"mask has shape \(7, 5\) for scores of shape \(7, 6\)"):
        loss(scores, values, mask[:, :5])
    with pytest.raises(ShapeError, match=r"mask has shape"):
        neuralsort(scores, mask=mask[0])
    with pytest.raises(ArgumentError, match="bitonic network cannot sort lists of different lengths"):
        SortingNetwork(4, "bitonic").matrix(scores[:, :4], mask=mask[:, :4])
    with pytest.raises(ArgumentError, match="Pass no mask with it"):
        soft_rank(nested(scores, mask), mask=mask)
    with pytest.raises(ShapeError, match="lists of different lengths"):
        loss(nested(scores, mask), nested(values, mask.flip(0)))
    with pytest.raises(ArgumentError, match=r"layout=torch\.jagged"):
        soft_rank(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]))
    with pytest.raises(ArgumentError, match="at least one list"):
        pad_lists([])


def takers(scores, values):
    """Everything public that takes a mask, by name."""
    lowest, highest = sorting.tied_ranks(values)
    for name in ("SortingLoss", "SpearmanLoss", "NDCGLoss", "ListNetLoss", "PairwiseLogisticLoss"):
        make = getattr(sorting, name)
        loss = make("softsort") if name == "SortingLoss" else make()
        yield name, lambda mask, loss=loss: loss(scores, values, mask)
    yield "TopKLoss", lambda mask: sorting.TopKLoss(1)(scores, values[:, 0], mask)
    yield "PartialOrderLoss", lambda mask: sorting.PartialOrderLoss()(scores, lowest, highest, mask)
    for name in ("soft_sort", "soft_rank", "neuralsort", "softsort"):
        yield name, lambda mask, name=name: getattr(sorting, name)(scores, mask=mask)
    yield "soft_topk", lambda mask: soft_topk(scores, 1, mask=mask)
    for name in ("ndcg", "mean_reciprocal_rank", "spearman", "kendall", "exact_match", "element_wise_match"):
        yield name, lambda mask, name=name: getattr(sorting, name)(scores, values, mask=mask)
    for name in ("tied_ranks", "listed_ranks", "target_matrix"):
        yield name, lambda mask, name=name: getattr(sorting, name)(values, mask=mask)
    yield "survival_ranks", lambda mask: sorting.survival_ranks(scores, values > 1, mask=mask)


def test_a_mask_of_another_shape_or_dtype_is_refused_everywhere():
    scores, values = torch.randn(2, 3), torch.tensor([[0, 1, 2], [2, 1, 0]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    for name, call in takers(scores, values):
        call(mask)
        for wrong, error, words in (
            (mask.float(), ArgumentError, "the mask is torch.float32. Pass a boolean tensor"),
            ([[True] * 3] * 2, ArgumentError, "the mask is list. Pass a boolean tensor"),
            (mask[:, :2], ShapeError, "the mask has shape (2, 2)"),
            (mask[0], ShapeError, "the mask has shape (3,)"),
        ):
            with pytest.raises(error) as caught:
                call(wrong)
            assert f"{name}: {words}" in str(caught.value) or (words in str(caught.value) and "sort" in name)


def test_a_grade_that_is_no_number_does_not_pass_in_silence():
    scores, grades = torch.randn(2, 3), torch.tensor([[0.0, torch.nan, 2.0], [2.0, 1.0, 0.0]])
    for found in (sorting.NDCGLoss()(scores, grades), sorting.ndcg(scores, grades)):
        assert found.isnan().tolist() == [True, False]
