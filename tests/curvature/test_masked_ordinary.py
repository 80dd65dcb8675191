"""Lists of different lengths on the short way of an ordinary batch, against the long way through the other pieces."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_masked_step import coupled, masks
from test_ordinary import WAYS, long_way
from torch import Tensor

import newton_losses as nl
import newton_losses.newton as newton_module
from newton_losses.curvature import ordinary_loss

LIST_WAYS = [way for way in WAYS if way[0] != "hessian"]
SHAPE = (24, 5)


def batches(kind: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for batch in range(4):
        generator = torch.Generator().manual_seed(batch)
        y, target = torch.randn(2, *SHAPE, generator=generator)
        mask = masks(kind, *SHAPE, generator)
        mask[3] = False  # a list without an item
        yield y, target, mask


def both_ways(
    loss: Any, way: tuple[Any, Any, bool], kind: str, call: Callable[..., Tensor], others: tuple[Tensor, ...] = ()
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """What a batch gives on either way: the value, and the gradients of the outputs and of `others`."""
    curvature, damping, exchangeable = way
    options: dict[str, Any] = {"exchangeable": exchangeable, "check": False, "on_nonfinite": "ignore"}
    short, long = (nl.NewtonLoss(loss, curvature, damping, **options) for _ in range(2))
    long_way(long)
    for y, target, mask in batches(kind):
        found = []
        for newton in (short, long):
            own = y.clone().requires_grad_()
            value = call(newton, own, target, mask)
            found.append([value.detach(), *torch.autograd.grad(3 * value, (own, *others))])
        yield found[0], found[1]
    assert int(short.skipped) == int(long.skipped)
    assert short._watch.seen == long._watch.seen
    if short.running_square is not None:
        torch.testing.assert_close(short.running_square, long.running_square, rtol=1e-5, atol=0)


def by_name(newton: nl.NewtonLoss, y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return newton(y, target, mask=mask)


def by_position(newton: nl.NewtonLoss, y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return newton(y, target, mask)


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("call", [by_name, by_position])
@pytest.mark.parametrize("kind", ["ragged", "random", "whole"])
@pytest.mark.parametrize("way", LIST_WAYS, ids=str)
def test_it_computes_the_same_and_is_taken(
    monkeypatch: pytest.MonkeyPatch, way: Any, kind: str, call: Callable[..., Tensor]
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(newton_module, "ordinary_loss", lambda *all: found.append(ordinary_loss(*all)) or found[-1])
    for short, long in both_ways(coupled, way, kind, call):
        assert_same(short, long)
    if way[1] != 1e-6:  # beside which the Fisher of lists may be singular
        assert [value is not None for value, _ in found][1:] == [True] * 3  # of a run, not the first batch


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("way", LIST_WAYS, ids=str)
def test_a_bad_sample_is_contained_and_counted(way: Any, bad: float) -> None:
    calls = itertools.count()

    def loss(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        values = coupled(y, target, mask)
        return values + torch.where(torch.arange(len(y)) == 5, bad, 0.0) if next(calls) in (4, 5) else values

    for short, long in both_ways(loss, way, "ragged", by_name):
        assert_same(short[1:], long[1:])
        assert short[1].isfinite().all()


@pytest.mark.parametrize("way", LIST_WAYS, ids=str)
def test_what_padding_sends_back_reaches_nobody(way: Any) -> None:
    """The slope of √ at zero is infinite, and times the zero of `where` it is NaN."""

    def loss(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return coupled(y, target, mask) + torch.where(mask, (y * mask).square().sqrt(), 0.0).sum(1)

    for short, long in both_ways(loss, way, "ragged", by_name):
        assert_same(short, long)
        assert short[1].isfinite().all()


@pytest.mark.parametrize("way", LIST_WAYS, ids=str)
def test_a_loss_that_learns_goes_it_too(way: Any) -> None:
    scale = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.3], requires_grad=True)

    def loss(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return coupled(y * scale, target, mask)

    plain = [torch.autograd.grad(3 * loss(*batch).mean(), scale)[0] for batch in batches("ragged")]
    for (short, long), wanted in zip(both_ways(loss, way, "ragged", by_name, (scale,)), plain, strict=True):
        assert_same(short, long)
        torch.testing.assert_close(short[2], wanted)


def test_losses_of_lists_go_it_with_a_mask_and_with_nested_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this library take their mask by name."""
    found: list[Any] = []
    monkeypatch.setattr(newton_module, "ordinary_loss", lambda *all: found.append(ordinary_loss(*all)) or found[-1])
    newton = nl.NewtonLoss(nl.sorting.ListNetLoss(), check=False)
    lists = [torch.randn(length, generator=torch.Generator().manual_seed(length)) for length in (3, 5, 2)]
    mask = torch.arange(5) < torch.tensor([[3], [5], [2]])
    gradients = []
    for kind in ("named", "positional", "nested"):
        for _ in range(2):
            y = torch.cat(lists).requires_grad_()
            if kind == "nested":
                nested = torch.nested.nested_tensor_from_jagged(y, torch.tensor([0, 3, 8, 10]))
                value = newton(nested, nested.detach().square())
            else:
                padded = torch.zeros(mask.shape).masked_scatter(mask, y)
                given = (padded, padded.detach().square())
                value = newton(*given, mask=mask) if kind == "named" else newton(*given, mask)
            gradients.append(torch.autograd.grad(value, y)[0])
    assert [value is not None for value, _ in found] == [False, True, True, True, True, True]
    torch.testing.assert_close(
        gradients[2:], gradients[1:-1], rtol=1e-3, atol=0
    )  # the same batch enters its unit again
