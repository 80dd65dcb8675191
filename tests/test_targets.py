"""Targets by position and by name, wrong ones, and what a scalar loss is taken for."""

import functools
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from newton_losses import (
    ArgumentError,
    Expansion,
    NewtonLoss,
    SeparabilityError,
    diagnose,
    newton_loss,
    newton_target,
)
from newton_losses.sorting import SortingLoss, SpearmanLoss, soft_rank

Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
TARGET = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 3


def weighted(y: Tensor, target: Tensor, weight: Tensor | float = 1.0, *, power: int = 2) -> Tensor:
    return (weight * (y - target).abs().pow(power)).sum(1)


class Own:
    """Brings its own expansion."""

    def expand(self, y: Tensor, target: Tensor, *, curvature: str | None) -> Expansion:
        return Expansion((y - target).square().sum(1), 2 * (y - target), 2 * torch.eye(y.shape[1]))


def gradient(newton: nn.Module, *targets: Any, **named: Any) -> Tensor:
    outputs = Y.clone().requires_grad_()
    newton(outputs, *targets, **named).backward()
    return outputs.grad


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_targets_by_name_are_those_by_position(kind: str) -> None:
    for loss, name, target in [
        (nn.CrossEntropyLoss(), "target", LABELS),
        (weighted, "target", TARGET),
        (SortingLoss("softsort"), "values", TARGET),
    ]:
        newton = NewtonLoss(loss, kind)
        assert torch.equal(gradient(NewtonLoss(loss, kind), **{name: target}), gradient(newton, target)), name
        with torch.no_grad():
            assert torch.equal(newton(Y, **{name: target}), newton(Y, target))
    weight = torch.rand(8, 1)
    wanted = gradient(NewtonLoss(lambda y: weighted(y, TARGET, weight, power=4), kind))
    assert torch.equal(gradient(NewtonLoss(weighted, kind), TARGET, weight=weight, power=4), wanted)
    assert torch.equal(gradient(NewtonLoss(weighted, kind), weight=weight, target=TARGET, power=4), wanted)


def test_targets_by_name_compile() -> None:
    torch._dynamo.reset()
    newton = NewtonLoss(weighted, "fisher", check=False)
    compiled = torch.compile(newton, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, target=TARGET), gradient(newton, TARGET))


def test_a_name_that_the_loss_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(ArgumentError, match=r"the targets \(target, weight, power\); named in the call: targets"):
        NewtonLoss(weighted, curvature="hessian")(Y, targets=TARGET)
    with pytest.raises(ArgumentError, match="missing a required argument: 'target'"):
        NewtonLoss(weighted, curvature="hessian")(Y, weight=2.0)
    with pytest.raises(ArgumentError, match=r"the targets \(target\); named in the call: targets"):
        NewtonLoss(Own(), curvature="hessian")(Y, targets=TARGET)
    assert torch.equal(
        gradient(NewtonLoss(Own(), curvature="hessian"), target=TARGET),
        gradient(NewtonLoss(Own(), curvature="hessian"), TARGET),
    )


@pytest.mark.parametrize(
    ("loss", "target", "words"),
    [
        (nn.CrossEntropyLoss(), LABELS.float(), r"CrossEntropyLoss .* \(8, 3\) of float32 and \(8,\) of float32"),
        (nn.CrossEntropyLoss(), LABELS[:5], r"\(5,\) of int64"),
        (nn.CrossEntropyLoss(), LABELS + 7, r"\(8,\) of int64"),
        (weighted, TARGET[:, :2], r"weighted .* \(8, 2\) of float32"),
        (weighted, "text", "a str"),
        (nn.CrossEntropyLoss(), None, "a NoneType"),
    ],
    ids=["float labels", "too few labels", "labels out of range", "too narrow", "text", "none"],
)
def test_wrong_targets_are_named_beside_the_words_of_torch(loss: Any, target: Any, words: str) -> None:
    for kind in ("hessian", "fisher"):
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)) as raised:
            NewtonLoss(loss, kind)(Y.clone().requires_grad_(), target)
        (note,) = raised.value.__notes__
        assert re.search(words, note), note
        assert "shape, dtype and range" in note


def test_the_loss_is_named_where_a_newton_loss_is_shown() -> None:
    assert (
        repr(NewtonLoss(weighted, damping=2.0, curvature="hessian"))
        == "NewtonLoss(weighted, curvature='hessian', damping=2.0)"
    )
    assert "(loss): MSELoss()" in repr(NewtonLoss(nn.MSELoss(), curvature="hessian"))


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_a_sum_that_is_taken_for_a_mean_is_said(kind: str) -> None:
    def total(y: Tensor, target: Tensor) -> Tensor:
        return (y - target).pow(4).sum()

    with pytest.warns(UserWarning, match="total returns a scalar that doubles .* reduction='sum'") as told:
        NewtonLoss(total, kind)(Y, TARGET)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for reduction in ("sum", "mean"):
            NewtonLoss(total, kind, reduction=reduction)(Y, TARGET)
        NewtonLoss(lambda y, t: total(y, t) / len(y), kind)(Y, TARGET)
        NewtonLoss(lambda y, t: (y - t).pow(4).mean(), kind)(Y, TARGET)
        NewtonLoss(lambda y, t: (y - t).pow(4).sum(1), kind)(Y, TARGET)
        NewtonLoss(lambda y, t: total(y, TARGET) / 8, kind)(Y, TARGET)  # knows the size of its batch
        NewtonLoss(nn.functional.cross_entropy, kind)(Y, LABELS)
        NewtonLoss(nn.MSELoss(reduction="sum"), kind)(Y, TARGET)
        newton = NewtonLoss(nn.functional.mse_loss, kind)
        newton(Y, TARGET)


def test_a_target_may_be_called_y() -> None:
    def loss(prediction: Tensor, y: Tensor) -> Tensor:
        return (prediction - y).pow(4).sum(1)

    assert torch.equal(gradient(NewtonLoss(loss), y=TARGET), gradient(NewtonLoss(loss), TARGET))


def test_a_batch_without_a_finite_sample_does_not_stand_for_the_check() -> None:
    mixed = NewtonLoss(lambda y, target: (y - y.mean(0) - target).pow(4).sum(1), on_nonfinite="ignore")
    mixed(Y.clone().requires_grad_(), TARGET * torch.nan)
    with pytest.raises(SeparabilityError):
        mixed(Y.clone().requires_grad_(), TARGET)


def test_a_state_without_the_unit_leaves_it_as_it_is() -> None:
    newton = NewtonLoss(weighted)
    newton(Y.clone().requires_grad_(), TARGET).backward()
    assert newton.running_square is not None
    before = newton.running_square.clone()
    newton.load_state_dict({})
    assert torch.equal(newton.running_square, before)
    assert before.all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda y: NewtonLoss(weighted)(y), r"weighted\(y, target, weight, power\) .* no targets: missing .* 'target'"),
        (lambda y: newton_loss(weighted, y), r"weighted\(.* no targets: missing a required argument: 'target'"),
        (lambda y: newton_target(weighted, y), r"weighted\(.* no targets: missing a required argument: 'target'"),
        (lambda y: NewtonLoss(nn.MSELoss())(y), r"MSELoss\(input, target\) .* no targets: missing .* 'target'"),
        (lambda y: NewtonLoss(weighted)(y, TARGET, 1.0, 2), "3 targets: too many positional arguments"),
    ],
    ids=["module", "function", "target", "torch's loss", "too many"],
)
def test_a_missing_target_is_a_sentence(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call(Y.clone().requires_grad_())
    with torch.no_grad(), pytest.raises(ArgumentError, match=words):
        call(Y)


def test_a_mistake_inside_of_the_loss_is_not_taken_for_a_missing_target() -> None:
    def mistaken(y: Tensor, target: Tensor) -> Tensor:
        return weighted(y)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match=r"weighted\(\) missing 1 required positional argument"):
        NewtonLoss(mistaken)(Y, TARGET)


@pytest.mark.parametrize("reduction", ["none", None])
def test_a_torch_loss_without_a_reduction_gives_one_value_per_sample(reduction: Any) -> None:
    found = gradient(NewtonLoss(nn.CrossEntropyLoss(reduction="none"), reduction=reduction), LABELS)
    torch.testing.assert_close(found, gradient(NewtonLoss(nn.CrossEntropyLoss()), LABELS))


# A loss with an argument of its own called mask

MASK = torch.rand(8, 3, generator=torch.Generator().manual_seed(2)) > 0.3


def masked(y: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    cells = (y - target).pow(4)
    return (cells if mask is None else cells * mask).sum(1)


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_a_loss_with_an_own_mask_gets_it_and_outputs_that_do_not_exist_count_nowhere(kind: Any) -> None:
    """It was kept from the loss, whose value was then that of all cells."""
    newton = NewtonLoss(masked, kind)
    wanted = gradient(NewtonLoss(lambda y: masked(y, TARGET, MASK), kind), mask=MASK)
    for targets, named in (((), {"target": TARGET}), ((TARGET,), {}), ((TARGET, MASK), {})):
        found = gradient(NewtonLoss(masked, kind), *targets, **named, mask=MASK)
        assert torch.equal(found, wanted)
        assert not found[~MASK].any()
    assert torch.equal(newton(Y, TARGET, mask=MASK), masked(Y, TARGET, MASK).mean())
    assert torch.equal(newton_loss(masked, Y, TARGET, mask=MASK), masked(Y, TARGET, MASK).mean())
    torch.testing.assert_close(newton_target(masked, Y, TARGET, mask=MASK).value, masked(Y, TARGET, MASK))


def test_an_own_mask_of_another_shape_or_dtype_is_the_losss_alone() -> None:
    def by_sample(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return (y - target).pow(4).sum(1) * mask

    for loss, own in ((by_sample, MASK[:, 0]), (masked, torch.rand(8, 3))):
        found = gradient(NewtonLoss(loss), TARGET, mask=own)
        assert torch.equal(found, gradient(NewtonLoss(loss), TARGET, own))


def test_nested_lists_bring_the_mask_to_a_loss_that_takes_one() -> None:
    lists = [Y[0], Y[1, :1], Y[2, :2]]
    y, target = (
        torch.nested.nested_tensor(part, layout=torch.jagged) for part in (lists, [one * 0 + 1 for one in lists])
    )
    wanted = torch.stack([(one - 1).pow(4).sum() for one in lists]).mean()
    torch.testing.assert_close(NewtonLoss(masked)(y, target), wanted)


def test_nested_lists_with_a_target_by_keyword_alone() -> None:
    """The mask is the second thing that is bound to this loss."""
    offsets = torch.tensor([0, 3, 5, 9])

    def loss(y: Tensor, target: Tensor, *, weight: Tensor, mask: Tensor | None = None) -> Tensor:
        return weight * torch.where(mask, (y - target).pow(4), 0.0).sum(1)

    rows, target, weight = (
        Y.reshape(-1)[:9].clone().requires_grad_(),
        TARGET.reshape(-1)[:9],
        torch.tensor([1.0, 2.0, 3.0]),
    )
    y, target = (torch.nested.nested_tensor_from_jagged(one, offsets) for one in (rows, target))
    newton = NewtonLoss(loss)
    newton(y, target, weight=weight).backward()
    mask = torch.arange(4) < torch.tensor([[3], [2], [4]])
    padded, own = (torch.zeros(3, 4).masked_scatter(mask, one.values().detach()) for one in (y, target))
    padded.requires_grad_()
    NewtonLoss(loss)(padded, own, weight=weight, mask=mask).backward()
    torch.testing.assert_close(rows.grad, padded.grad[mask])


def test_a_mask_amid_the_targets_is_one_as_well() -> None:
    def loss(y: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        return torch.where(mask, (y - target).pow(4), 0.0).sum(1)

    mask = torch.arange(3) < 1 + torch.arange(8)[:, None] % 3
    for _ in range(2):
        by_name, in_place = NewtonLoss(loss), NewtonLoss(loss)
        for _ in range(3):
            wanted, found = gradient(by_name, target=TARGET, mask=mask), gradient(in_place, mask, TARGET)
            assert torch.equal(wanted, found)
            assert not found[~mask].any()


@pytest.mark.parametrize("how", ["compiled", "bound", "bound to a module of one's own"])
def test_a_mask_reaches_a_loss_whose_target_came_by_name(how: str) -> None:
    class Own(nn.Module):
        def forward(self, y: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
            rows = (y - values).square()
            return (rows if mask is None else torch.where(mask, rows, 0.0)).sum(1)

    loss = Own() if "own" in how else SpearmanLoss("laplace", temperature=0.1)
    mask = torch.arange(3) < 1 + torch.arange(8)[:, None] % 3
    wanted = NewtonLoss(loss, check=False)(Y, TARGET, mask=mask)
    if how == "compiled":
        newton = NewtonLoss(loss, check=False)
        found = torch.compile(lambda y: newton(y, values=TARGET, mask=mask), backend="eager")(Y)
    else:
        found = NewtonLoss(functools.partial(loss, values=TARGET), check=False)(Y, mask=mask)
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(wanted, loss(Y, TARGET).mean())


def test_nested_lists_with_holes_between_them_are_their_items() -> None:
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
    begin, length = torch.tensor([0, 1, 2]), torch.tensor([3, 2, 3])
    place = torch.arange(5)
    exists = (place >= begin[:, None]) & (place < (begin + length)[:, None])
    loss, found = SpearmanLoss("laplace", temperature=1.0), []
    for has_holes in (True, False):
        leaf = rows.clone().requires_grad_()
        nested = torch.nested.narrow(leaf, 1, begin, length, layout=torch.jagged)
        if not has_holes:
            nested = torch.nested.nested_tensor_from_jagged(leaf[exists], torch.tensor([0, 3, 5, 8]))
        NewtonLoss(loss)(nested, -nested.detach()).backward()
        found.append(leaf.grad)
        ranks = soft_rank(nested, "laplace", temperature=0.1)
        assert [len(one) for one in ranks.unbind()] == length.tolist()
        found.append(torch.cat([one.detach() for one in ranks.unbind()]))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[3])
    assert not found[0][~exists].any()


def test_nested_lists_without_any_item_have_a_graph() -> None:
    items = torch.zeros(0, requires_grad=True)
    empty = torch.nested.nested_tensor_from_jagged(items * 1, torch.tensor([0, 0, 0]))
    SpearmanLoss("laplace")(empty, empty.detach()).sum().backward()
    assert items.grad.shape == (0,)


def test_a_mask_that_means_the_opposite_is_refused() -> None:
    """As torch's key_padding_mask does, where True is left out: nothing was learned, without a word."""

    def ignoring(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return masked(y, target, ~mask)

    with pytest.raises(ArgumentError, match=r"ignoring has gradients only where the mask is False.* pass ~mask"):
        NewtonLoss(ignoring)(Y.clone().requires_grad_(), TARGET, mask=MASK)


def test_an_own_mask_compiles() -> None:
    torch._dynamo.reset()
    newton = NewtonLoss(masked, check=False)
    compiled = torch.compile(newton, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, TARGET, mask=MASK), gradient(newton, TARGET, mask=MASK))


def test_a_sorting_loss_takes_its_targets_by_name_wherever_it_takes_them_by_position() -> None:
    """Nested ones, a mask that `diagnose` takes a part of, and names that it does not have."""
    loss, mask = SortingLoss("softsort"), torch.arange(3) < torch.tensor([[3], [2]] * 4)
    report = diagnose(loss, Y, TARGET, mask=mask)
    assert report.to_dict() == diagnose(loss, Y, TARGET, mask).to_dict()
    flat, offsets = torch.randn(8, requires_grad=True), torch.tensor([0, 3, 8])
    scores, values = (torch.nested.nested_tensor_from_jagged(one, offsets) for one in (flat, torch.arange(8.0)))
    by_name, by_position = (
        torch.autograd.grad(value, flat)[0]
        for value in (NewtonLoss(loss)(scores, values=values), NewtonLoss(loss)(scores, values))
    )
    assert torch.equal(by_name, by_position)
    with pytest.raises(ArgumentError, match=r"'value'\. The loss takes the targets \(values, mask, ranks\)"):
        NewtonLoss(loss)(Y, value=TARGET)


def test_the_function_says_where_targets_go_by_name() -> None:
    y: Any = torch.zeros(2, 1)
    named: dict[str, Any] = {"target": y}
    with pytest.raises(TypeError, match=r"target is no option of a Newton loss; .* pass them by position"):
        newton_loss(lambda y, target: (y - target).square().sum(1), y, **named)
