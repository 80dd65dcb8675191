"""Newton losses of lists, for losses of users and of the library: masks, sets, nested tensors; against brute force."""

import importlib.util
from itertools import permutations
from pathlib import Path

import pytest
import torch
from test_masks import CLOSE, nested, ragged

import newton_losses as nl
from newton_losses import ArgumentError, NewtonLoss, ShapeError
from newton_losses.curvature import Exchangeable, Masked
from newton_losses.sorting import (
    ListNetLoss,
    NDCGLoss,
    PartialOrderLoss,
    SortingLoss,
    SpearmanLoss,
    TopKLoss,
    tied_ranks,
)


def coupled(y, values, mask):
    """A user's loss that masks its value, although a network scores the padding too."""
    return torch.where(mask, (y - values).pow(4) / 4 + y.sin() * y.roll(1, -1).cos(), 0.0).sum(-1)


def variance(y, values, mask):
    """A user's loss of a set: no order of the items changes it."""
    size = mask.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(mask, y, 0.0).sum(-1, keepdim=True) / size
    return torch.where(mask, (y - mean).pow(4) + (y - values).square(), 0.0).sum(-1)


def gradient_of(newton, y, *targets, **options):
    leaf = y.clone().requires_grad_()
    newton(leaf, *targets, **options).backward()
    return leaf.grad


def batch(**options):
    scores, values, mask = ragged(**options)
    return scores.nan_to_num(nan=5.0), values, mask


@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_a_masked_user_loss_is_solved_on_each_samples_own_outputs(curvature, spectrum):
    y, values, mask = batch()
    found = nl.newton_target(coupled, y, values, mask, curvature=curvature, damping=0.7, spectrum=spectrum, mask=mask)
    single = [lambda s, v=v, m=m: coupled(s, v, m) for v, m in zip(values, mask, strict=True)]
    gradients = torch.stack([torch.func.grad(f)(s) for f, s in zip(single, y, strict=True)])
    gradients = torch.where(mask, gradients, 0.0)
    pairs = mask.unsqueeze(-1) & mask.unsqueeze(-2)
    if curvature == "hessian":
        matrices = torch.stack([torch.func.hessian(f)(s) for f, s in zip(single, y, strict=True)])
    else:
        matrices = gradients.unsqueeze(-1) * gradients.unsqueeze(-2)
    behind = pairs.sum(0).to(y.dtype)
    if curvature == "fisher":  # each output in a scale of its own
        behind = torch.outer(*[mask.sum(0).to(y.dtype).sqrt()] * 2)
    mean = torch.where(pairs, matrices, 0.0).sum(0) / behind.clamp(min=1)
    assert isinstance(found.curvature, Masked)
    torch.testing.assert_close(found.curvature.dense(), mean, **CLOSE)
    for row in range(7):
        m = mask[row]
        values_, vectors = torch.linalg.eigh(mean[m][:, m])
        values_ = {"raw": values_, "absolute": values_.abs(), "clip": values_.clamp(min=0)}[spectrum]
        step = vectors @ ((vectors.mT @ gradients[row, m]) / (values_ + 0.7))
        torch.testing.assert_close(found.step[row, m], step, **CLOSE)
        assert (found.step[row, ~m] == 0).all()


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
@pytest.mark.parametrize("exchangeable", [False, True])
def test_padding_gets_nothing_and_changes_nothing(curvature, exchangeable):
    y, values, mask = batch()
    newton = NewtonLoss(variance, curvature, exchangeable=exchangeable)
    found = gradient_of(newton, y, values, mask, mask=mask)
    assert (found[~mask] == 0).all()
    assert found[mask].all()
    newton.eval()  # the scale of the run stays what it is
    other = torch.where(mask, y, -3e8)
    torch.testing.assert_close(gradient_of(newton, other, values, mask, mask=mask), found, **CLOSE)
    wide = [torch.nn.functional.pad(x, (0, 4)) for x in (y, values, mask)]
    torch.testing.assert_close(gradient_of(newton, *wide, mask=wide[2])[:, :6], found, **CLOSE)
    row = slice(5, 6)
    alone = gradient_of(newton, y[row][mask[row]][None], values[row][mask[row]][None], mask[row][mask[row]][None])
    torch.testing.assert_close(
        gradient_of(newton, y[row], values[row], mask[row], mask=mask[row])[mask[row]], alone[0], **CLOSE
    )
    with torch.no_grad():
        value = newton(y, values, mask, mask=mask)
    torch.testing.assert_close(value, variance(y, values, mask).mean())


def test_exchangeable_is_the_average_over_all_orders():
    y, values = batch(count=5, n=4)[:2]
    everything = torch.ones_like(y, dtype=torch.bool)
    for curvature in ("hessian", "fisher"):
        raw = nl.expand(coupled, y, values, everything, curvature=curvature).curvature.dense()
        orders = [list(order) for order in permutations(range(4))]
        mean = torch.stack([raw[order][:, order] for order in orders]).mean(0)
        found = nl.expand(coupled, y, values, everything, curvature=curvature, exchangeable=True).curvature
        assert isinstance(found, Exchangeable)
        torch.testing.assert_close(found.dense(), mean, **CLOSE)
        rows = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(found.product(rows), rows @ mean, **CLOSE)
        torch.testing.assert_close(found.mean_square(), torch.linalg.eigvalsh(mean).square().mean(), **CLOSE)
    # Without a matrix the trace is an estimate, the sum exact.
    probed = nl.expand(coupled, y, values, everything, exchangeable=True, matrix_free=True).curvature
    exact = nl.expand(coupled, y, values, everything, exchangeable=True).curvature
    torch.testing.assert_close(probed.common, exact.common, **CLOSE)
    assert (probed.among - exact.among).abs() < exact.among.abs()


def losses():
    return [
        variance,
        nl.sorting.SortingLoss("neuralsort"),
        NDCGLoss("softsort", temperature=0.5),
        NDCGLoss("laplace", temperature=0.5),
        SpearmanLoss("laplace", temperature=0.5),
        ListNetLoss(),
    ]


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
@pytest.mark.parametrize("loss", losses(), ids=lambda loss: getattr(loss, "__name__", None) or str(loss)[:16])
def test_stored_order_does_not_matter(loss, curvature):
    y, values, mask = batch()
    y = y + 0.01 * torch.arange(6)
    newton = NewtonLoss(loss, curvature, exchangeable=True if loss is variance else None)
    orders = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(row)) for row in range(7)])
    results = []
    for index in (torch.arange(6).expand(7, 6), orders):
        moved = [x.gather(-1, index) for x in (y, values, mask)]
        given = moved if loss is variance else moved[:2]
        results.append(gradient_of(newton, *given, mask=moved[2]).gather(-1, index.argsort(-1)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)
    assert (results[0][~mask] == 0).all()
    if loss is not variance:
        # By position it is the same mask, and nested tensors are, too.
        torch.testing.assert_close(gradient_of(newton, y, values, mask), results[0])
        leaf = y[mask].requires_grad_()
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(-1).cumsum(0)])
        newton(torch.nested.nested_tensor_from_jagged(leaf, offsets), nested(values, mask)).backward()
        torch.testing.assert_close(leaf.grad, results[0][mask])


def test_losses_with_other_targets_take_a_mask():
    y, values, mask = batch()
    low, high = tied_ranks(values, mask=mask)
    found = gradient_of(
        NewtonLoss(PartialOrderLoss("softsort", temperature=1.0), curvature="hessian"), y, low, high, mask=mask
    )
    labels = mask.int().argmax(-1)
    top = gradient_of(NewtonLoss(TopKLoss({1: 0.5, 2: 0.5}), curvature="hessian"), y, labels, mask=mask)
    for gradient in (found, top):
        assert (gradient[~mask] == 0).all()
        assert gradient.isfinite().all()
        assert gradient.any()


def test_a_loss_with_its_own_expansion_is_averaged():
    class Own:
        def expand(self, y, *, curvature):
            return nl.expand(lambda y: y.pow(4).sum(-1) + y[:, 0] * y[:, 1], y, curvature=curvature)

    y = batch(count=4, n=3)[0]
    for curvature in ("hessian", "fisher"):
        found = nl.newton_target(Own(), y, curvature=curvature, exchangeable=True).curvature
        wanted = nl.expand(
            lambda y: y.pow(4).sum(-1) + y[:, 0] * y[:, 1], y, curvature=curvature, exchangeable=True
        ).curvature
        torch.testing.assert_close(found.dense(), wanted.dense(), **CLOSE)


@pytest.mark.parametrize("curvature", ["hessian", "fisher", None])
def test_a_loss_with_its_own_expansion_is_averaged_only_if_asked(curvature):
    scores, values, mask = batch(count=4, n=3)
    for exchangeable, form in ((True, Exchangeable), (False, Masked)):
        found = nl.expand(
            SortingLoss("softsort", temperature=1.0), scores, values, curvature=curvature, mask=mask,
            exchangeable=exchangeable,
        )  # fmt: skip
        assert isinstance(found.curvature, form if curvature else type(None))


def test_errors_teach():
    y, values, mask = batch()
    newton = NewtonLoss(coupled, curvature="hessian")
    with pytest.raises(ArgumentError, match=r"the mask is torch.float32\. Pass a boolean"):
        newton(y.requires_grad_(), values, mask, mask=mask.float())
    with pytest.raises(ShapeError, match=r"the mask has shape \(7, 5\) for outputs of shape \(7, 6\)"):
        newton(y, values, mask, mask=mask[:, :5])
    with pytest.raises(ArgumentError, match="exchangeable=True for outputs that are a set"):
        NewtonLoss(coupled, matrix_free=True, curvature="hessian")(y, values, mask, mask=mask)
    with pytest.raises(ArgumentError, match="True, False or None"):
        NewtonLoss(coupled, exchangeable="yes", curvature="hessian")
    with pytest.raises(ArgumentError, match="Pass no mask with them"):
        newton(nested(y.detach(), mask), values, mask, mask=mask)


def test_random_lists_give_finite_gradients_and_padding_none():
    path = Path(__file__).parents[2] / "benchmarks" / "lists_fuzz.py"
    specification = importlib.util.spec_from_file_location("lists_fuzz", path)
    lists_fuzz = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(lists_fuzz)
    assert lists_fuzz.fuzz(1000, seed=1, hessian=0.5) == []


def test_the_function_is_the_module():
    y, values, mask = batch()
    for loss, targets in ((variance, (values, mask)), (NDCGLoss("softsort"), (values,))):
        results = []
        for function in (
            NewtonLoss(loss, exchangeable=True, curvature="hessian"),
            lambda *args, loss=loss, **kw: nl.newton_loss(loss, *args, curvature="hessian", exchangeable=True, **kw),
        ):
            leaf = y.clone().requires_grad_()
            value = function(leaf, *targets, mask=mask)
            value.backward()
            results.append((value.detach(), leaf.grad))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", ["hessian", "fisher", "sample"])
def test_an_empty_batch_with_a_mask(kind):
    y, mask = torch.zeros(0, 3, requires_grad=True), torch.ones(0, 3, dtype=torch.bool)
    value = NewtonLoss(lambda y: y.square().sum(1), kind)(y, mask=mask)
    value.backward()
    assert value == 0
    assert nl.expand(lambda y: y.square().sum(1), y, curvature=None, mask=mask).curvature is None


def test_a_mask_as_the_last_of_three_targets():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    lowest, highest = (torch.tensor(ranks).expand(4, 5) for ranks in ([0, 0, 1, 2, 0], [1, 1, 2, 3, 0]))
    mask = torch.tensor([True, True, True, True, False]).expand(4, 5)
    results = []
    for targets, named in (((lowest, highest, mask), {}), ((lowest, highest), {"mask": mask})):
        y = scores.clone().requires_grad_()
        value = NewtonLoss(PartialOrderLoss("softsort"))(y, *targets, **named)
        value.backward()
        results.append((value.detach(), y.grad))
    torch.testing.assert_close(*results, **CLOSE)
    assert results[0][1].any()


def test_a_loss_with_its_own_expansion_keeps_it_beside_a_mask():
    masks = []

    class Watched(SortingLoss):
        def expand(self, *given, **options):
            masks.append(options.get("mask"))
            return super().expand(*given, **options)

    scores, values, mask = ragged()
    NewtonLoss(Watched("softsort"))(scores.requires_grad_(), values, mask)
    assert len(masks) == 1
    assert masks[0] is mask


def test_a_trace_by_products_has_no_preference_for_the_constant_list():
    """Of H = 11ᵀ both the trace and 1ᵀH1/m are m: nothing is left for differences, up to the noise of 16 probes."""
    y = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    found = nl.expand(lambda y: y.sum(1).square() / 2, y, exchangeable=True, matrix_free=True).curvature
    assert abs(float(found.among)) < 1
    torch.testing.assert_close(float(found.common), 100.0)


def test_lists_of_one_item_are_averaged_over_one_order():
    y, mask = torch.tensor([[1.0, 5.0], [2.0, 5.0]]), torch.tensor([[True, False], [True, False]])
    found = nl.expand(lambda y: y.pow(4).sum(1), y, curvature="hessian", exchangeable=True, mask=mask).curvature
    assert float(found.common) == 12 * (1 + 4) / 2


def test_no_list_steps_uphill_with_a_masked_fisher_and_a_small_damping():
    """As it would if entries were means over different samples, which makes eigenvalues negative."""
    generator, damping = torch.Generator().manual_seed(0), 0.01
    for _ in range(20):
        y, values = torch.randn(2, 16, 8, generator=generator, dtype=torch.float64)
        mask = torch.rand(16, 8, generator=generator) < 0.5
        gradient = gradient_of(lambda y, v, m: coupled(y, v, m).sum(), y, values, mask)
        expansion = nl.curvature.expand(coupled, y, values, mask, curvature="fisher", mask=mask)
        assert (torch.linalg.eigvalsh(expansion.curvature.dense()) > -1e-12).all()
        step = gradient_of(NewtonLoss(coupled, damping=damping), y, values, mask=mask) * len(y)
        assert ((step * gradient).sum(1) >= 0).all()
        assert (step.norm(dim=1) <= gradient.norm(dim=1) / damping * (1 + 1e-9)).all()


@pytest.mark.parametrize("curvature", ["fisher", "hessian", "sample"])
def test_a_mask_by_position_is_the_mask_by_name(curvature):
    """Where the loss calls it so: before, padding counted as outputs, and nothing said it."""
    y, values, mask = batch()
    wanted = gradient_of(NewtonLoss(variance, curvature), y, values, mask=mask)
    assert torch.equal(gradient_of(NewtonLoss(variance, curvature), y, values, mask), wanted)
    assert not wanted[~mask].any()
    # A truth for each output that has another name is a target like any other.
    renamed = NewtonLoss(lambda y, values, seen: variance(y, values, seen), curvature)
    with pytest.warns(UserWarning, match="looks like a mask"):
        assert not torch.equal(gradient_of(renamed, y, values, mask), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(NewtonLoss(variance, curvature, check=False), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradient_of(compiled, y, values, mask), wanted, **CLOSE)


@pytest.mark.parametrize("damping", ["auto", 0.1])
@pytest.mark.parametrize("curvature", ["fisher", "hessian", "sample"])
@pytest.mark.parametrize("exchangeable", [False, True])
def test_empty_lists_change_no_other(curvature, damping, exchangeable):
    y, values, mask = batch()
    mask[:, 0] = True
    found = []
    for empty in (0, 3):
        more = [torch.cat([one, torch.zeros(empty, *one.shape[1:], dtype=one.dtype)]) for one in (y, values, mask)]
        newton = NewtonLoss(variance, curvature, damping, exchangeable=exchangeable)
        found.append(gradient_of(newton, *more[:2], mask=more[2])[: len(y)] * len(more[0]))
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@pytest.mark.parametrize("curvature", ["fisher", "sample"])
@pytest.mark.parametrize("loss", [nl.sorting.ListNetLoss(), nl.sorting.PairwiseLogisticLoss(), nl.sorting.NDCGLoss()])
def test_boolean_relevance_is_no_mask(loss, curvature):
    """Clicks have the shape and dtype of a mask, and are what the lists are ranked by."""
    y, clicks = torch.randn(6, 5, requires_grad=True), torch.rand(6, 5) < 0.4
    newton = nl.NewtonLoss(loss, curvature)
    for wanted in (clicks.long(), clicks.float()):
        torch.testing.assert_close(newton(y, clicks), newton(y, wanted))
    by_name = nl.newton_loss(loss, y, clicks, mask=torch.ones_like(clicks), curvature=curvature)
    torch.testing.assert_close(by_name, nl.newton_loss(loss, y, clicks, curvature=curvature))


def test_a_loss_whose_own_expansion_knows_no_mask_is_refused_one():
    smoothed = nl.smoothing.SmoothedLoss(lambda y, target: (y - target).abs().sum(-1))
    y, mask = torch.randn(6, 5), torch.ones(6, 5, dtype=torch.bool)
    with pytest.raises(nl.ArgumentError, match="brings its own derivatives, and its method expand takes no mask"):
        nl.NewtonLoss(smoothed)(y, torch.zeros(6, 5), mask=mask)
