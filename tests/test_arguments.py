"""Numbers are checked alike everywhere: NumPy's are numbers, truths and texts are none, counts are whole."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import newton_losses as nl
from newton_losses import ArgumentError
from newton_losses._arguments import signature_of

# What is called with a number, and what it has kept of it.
POSITIVE: dict[str, Callable[[Any], Any]] = {
    "NeuralSort": lambda thing: nl.sorting.NeuralSort(thing).temperature,
    "SoftSort": lambda thing: nl.sorting.SoftSort(thing).temperature,
    "SortingNetwork": lambda thing: nl.sorting.SortingNetwork(3, steepness=thing).steepness,
    "RelaxedBellmanFord": lambda thing: nl.paths.RelaxedBellmanFord(thing).beta,
    "SmoothedLoss": lambda thing: nl.smoothing.SmoothedLoss(torch.sum, scale=thing).scale,
    "Perturbed": lambda thing: nl.perturbed.Perturbed(torch.sum, scale=thing).scale,
    "StudentT": lambda thing: nl.smoothing.StudentT(thing).degrees_of_freedom,
}
COUNTS: dict[str, Callable[[Any], Any]] = {
    "SortingNetwork": lambda thing: nl.sorting.SortingNetwork(thing).n,
    "TopKLoss": lambda thing: nl.sorting.TopKLoss(thing).k,
    "RelaxedBellmanFord": lambda thing: nl.paths.RelaxedBellmanFord(iterations=thing).iterations,
    "SmoothedLoss": lambda thing: nl.smoothing.SmoothedLoss(torch.sum, num_samples=thing).sampler.num_samples,
    "repeat_with_fisher": lambda thing: nl.convex.repeat_with_fisher((torch.ones(2),), thing)[0].shape[0],
    "FenchelYoungLoss": lambda thing: nl.perturbed.FenchelYoungLoss(torch.sum, 1.0, thing).sampler.num_samples,
}


@pytest.mark.parametrize("call", POSITIVE.values(), ids=POSITIVE)
def test_a_positive_number(call: Callable[[Any], Any]) -> None:
    for number in (3, 3.0, np.float32(3), np.float64(3), np.int64(3), torch.tensor(3.0)):
        kept = call(number)
        assert (type(kept), kept) == (float, 3.0)
    for thing in (0, -1.0, float("inf"), float("nan"), True, np.True_, torch.tensor(True), "3", b"3", None, [3.0], 3j,
                  torch.ones(2), torch.tensor(-1.0), torch.tensor(3j)):  # fmt: skip
        with pytest.raises(ArgumentError, match="is not a positive finite number"):
            call(thing)
    with pytest.raises(ArgumentError, match="requires a gradient"):  # which it would never have got
        call(torch.tensor(3.0, requires_grad=True))


@pytest.mark.parametrize("call", COUNTS.values(), ids=COUNTS)
def test_a_count(call: Callable[[Any], Any]) -> None:
    for number in (3, np.int32(3), np.int64(3)):
        kept = call(number)
        assert (type(kept), kept) == (int, 3)
    for thing in (0, -1, 2.5, 3.0, True, np.True_, torch.tensor(True), "3", [3], torch.ones(2)):
        with pytest.raises(ArgumentError, match=r"It is a whole number, at least 1\."):
            call(thing)


def test_a_function_is_asked_for_its_arguments_once_and_as_what_it_is_called():
    """As a method it has one argument less than on its own."""

    class Weighted(torch.nn.Module):
        def forward(self, y, target, weight):
            return weight * (y - target).square().sum(1)

    def plain(module, y, weight):  # the same places, other names
        return weight * y.square().sum(1)

    ones = torch.ones(2)
    y = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    newton = nl.NewtonLoss(Weighted(), check=False)
    for _ in range(2):
        newton(y, weight=ones, target=torch.zeros(2, 3)).backward()
    on_its_own = signature_of(Weighted.forward)
    assert on_its_own is not None
    assert list(on_its_own.parameters) == ["self", "y", "target", "weight"]
    assert list(signature_of(newton.loss).parameters) == ["y", "target", "weight"]
    assert signature_of(plain) is signature_of(plain)


def test_outputs_that_are_given_by_position_alone_do_not_move_the_targets():
    def loss(y, /, shift=0.0, weight=1.0):
        return (weight * (y - shift).square()).sum(1)

    y = torch.ones(4, 2, requires_grad=True)
    torch.testing.assert_close(nl.NewtonLoss(loss, check=False)(y, weight=3.0).detach(), torch.tensor(6.0))
    with pytest.raises(nl.ArgumentError, match="labels"):
        nl.NewtonLoss(lambda y, labels, /, weight=1.0: y.sum(1), check=False)(y, weight=3.0)
