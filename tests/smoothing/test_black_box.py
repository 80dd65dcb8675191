"""How a black box is called: targets in containers and by name, all draws at once, and what is said where it fails."""

import dataclasses
import re
from typing import NamedTuple

import numpy
import pytest
import torch

from newton_losses import ArgumentError, DerivativeError, NewtonLoss, ShapeError
from newton_losses.perturbed import FenchelYoungLoss, Perturbed
from newton_losses.smoothing import SmoothedAlgorithm, SmoothedLoss


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def both_positive(y):
    return (y > 0).all(-1)


class Pair(NamedTuple):
    wanted: torch.Tensor
    margin: float


CONTAINERS = {
    "dict": (lambda wanted: {"wanted": wanted, "margin": 0.25}, lambda target: target["wanted"]),
    "tuple": (lambda wanted: (0.25, wanted), lambda target: target[1]),
    "named tuple": (lambda wanted: Pair(wanted, 0.25), lambda target: target.wanted),
    "list within a dict": (lambda wanted: {"all": [wanted, "name"]}, lambda target: target["all"][0]),
    "array": (lambda wanted: wanted.numpy(), torch.from_numpy),
    "array within a tuple": (lambda wanted: (wanted.numpy(),), lambda target: torch.from_numpy(target[0])),
}


@pytest.mark.parametrize("baseline", ["value", "leave_one_out"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_targets_are_repeated_in_any_container(container, baseline):
    """The same numbers as with a bare tensor, from the same draws, alone and in a Newton loss."""
    pack, unpack = CONTAINERS[container]
    y = torch.randn(6, 4, dtype=torch.float64, generator=generator(40))
    wanted = torch.randn(6, 4, dtype=torch.float64, generator=generator(41))

    def cost(inputs, wanted):
        return (inputs > wanted).sum(-1)

    def loss(fn):
        return SmoothedLoss(fn, 0.5, 5, variance_reduction=baseline, generator=generator(42))

    plain = loss(cost).expand(y, wanted)
    packed = loss(lambda inputs, target: cost(inputs, unpack(target)))
    found = packed.expand(y, pack(wanted))
    assert torch.equal(found.value, plain.value)
    assert torch.equal(found.gradient, plain.gradient)
    packed.generator.manual_seed(42)
    torch.testing.assert_close(NewtonLoss(packed)(y, pack(wanted)), plain.value.mean())


def test_what_is_no_tensor_of_entries_is_passed_on_as_it_is():
    names, ragged, factor = ["a", "b", "c"], [torch.ones(3, 2), torch.ones(1), torch.ones(2)], torch.tensor(2.0)
    seen = []

    def cost(inputs, target, others):
        seen.append((target, others))
        return inputs.sum(-1)

    SmoothedLoss(cost, num_samples=4)(torch.zeros(3, 2), {"factor": factor, "ragged": ragged}, names)
    ((target, others),) = seen
    assert target["factor"] is factor
    assert [tuple(one.shape) for one in target["ragged"]] == [(3, 2), (1,), (2,)]
    assert others == names


@pytest.mark.parametrize("shared", [torch.eye(4), numpy.ones((4, 4))], ids=["tensor", "array"])
def test_what_all_samples_share_is_refused_within_a_container_too(shared):
    """In a batch of its length it would be taken for one entry per sample, and repeated."""
    with pytest.raises(ShapeError, match=r"shape \(4, 4\) for 3 samples.*bind what all samples share"):
        SmoothedLoss(lambda y, t: y.sum(-1))(torch.zeros(3, 2), {"table": shared})


def test_tensors_in_a_dataclass_are_repeated_as_well():
    @dataclasses.dataclass
    class Wanted:
        ranks: torch.Tensor
        name: str

    ranks = torch.arange(6.0).reshape(3, 2)
    seen = []
    loss = SmoothedLoss(lambda y, wanted: seen.append(wanted) or y.sum(-1), num_samples=4)
    loss(torch.zeros(3, 2), Wanted(ranks, "x"))
    assert torch.equal(seen[0].ranks, ranks.repeat(4, 1))
    assert seen[0].name == "x"


@pytest.mark.parametrize("draws", [1, 2])
def test_a_black_box_that_writes_into_its_targets_changes_nobody_elses(draws):
    target = torch.tensor([3.0, -1.0])
    loss = SmoothedLoss(lambda y, t: (y.sum(1) - t.clamp_(min=0)).abs(), num_samples=draws, variance_reduction="none")
    loss(torch.zeros(2, 2), target)
    assert target.tolist() == [3.0, -1.0]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_and_a_tuple_are_the_same_container(kind):
    """Of as many entries as there are samples, too: a tensor per sample is repeated beside a number, and not alone."""
    seen = []
    loss = SmoothedLoss(lambda y, t: seen.append(t) or y.sum(-1), num_samples=4)
    loss(torch.zeros(2, 2), kind((torch.ones(2, 2), 0.25)))
    assert type(seen[0]) is kind
    assert seen[0][0].shape == (8, 2)
    loss(torch.zeros(3, 2), kind((torch.ones(3, 2), torch.ones(1), torch.ones(2))))  # ragged: one per sample
    assert [tuple(one.shape) for one in seen[1]] == [(3, 2), (1,), (2,)]


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"t": t}, lambda t: [(t,)]], ids=["bare", "dict", "nested"])
def test_a_target_that_requires_a_gradient_is_refused_wherever_it_is(wrap):
    with pytest.raises(ArgumentError, match="a target requires a gradient"):
        SmoothedLoss(lambda y, t: y.sum(-1))(torch.zeros(3, 3), wrap(torch.zeros(3, requires_grad=True)))


def test_an_array_of_another_length_is_refused_like_a_tensor():
    with pytest.raises(ShapeError, match=r"SmoothedLoss: a target has shape \(10,\) for 3 samples"):
        SmoothedLoss(lambda y, t: y.sum(-1))(torch.zeros(3, 3), numpy.zeros(10))


def test_targets_by_name():
    y, wanted = torch.randn(6, 4, generator=generator(43)), torch.randn(6, 4, generator=generator(44))

    def cost(inputs, wanted, *, margin):
        return (inputs > wanted + margin).sum(-1)

    def loss():
        return SmoothedLoss(cost, 0.5, 5, generator=generator(45))

    margin = torch.rand(6, 1, generator=generator(46))
    value = loss()(y, wanted, margin=margin)
    assert torch.equal(loss()(y, wanted=wanted, margin=margin), value)
    assert torch.equal(loss().expand(y, margin=margin, wanted=wanted).value, value)
    torch.testing.assert_close(NewtonLoss(loss())(y, wanted=wanted, margin=margin), value.mean())


@pytest.mark.parametrize("wrap", [lambda loss: loss, NewtonLoss], ids=["alone", "in a Newton loss"])
def test_a_black_box_that_takes_no_such_target_is_told_by_its_own_name(wrap):
    loss = wrap(SmoothedLoss(both_positive, num_samples=4))
    y, target = torch.zeros(3, 2), torch.zeros(3)
    says = r"SmoothedLoss: both_positive\(y\) was called with the outputs and the target "
    with pytest.raises(ArgumentError, match=says + r"wanted, of shape \(3,\).*unexpected keyword argument 'wanted'"):
        loss(y, wanted=target)
    with pytest.raises(ArgumentError, match=says + r"of shape \(3,\) and dtype float32: too many positional"):
        loss(y, target)


def test_a_mask_of_outputs_is_refused_with_what_to_do():
    """The function that the message names keeps padded outputs at zero, and is right for the others."""
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])

    def misses(inputs, wanted, mask):
        return (((inputs > 0) != wanted) & mask).sum(-1)

    loss = SmoothedLoss(misses, 0.5, 40, generator=generator(47))
    y, wanted = torch.zeros(3, 3, requires_grad=True), torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(ArgumentError, match=r"expand takes no mask.*masked_fill\(~mask, 0.0\)"):
        NewtonLoss(loss)(y, wanted, mask=mask)
    with pytest.raises(ArgumentError, match="expand takes no mask"):
        NewtonLoss(loss)(y, wanted, mask)
    NewtonLoss(lambda y, t, mask: loss(y.masked_fill(~mask, 0.0), t, mask))(y, wanted, mask=mask).backward()
    assert torch.equal(y.grad < 0, mask)  # raise what is wanted
    assert torch.equal(y.grad != 0, mask)


@pytest.mark.parametrize("smoothed", [SmoothedLoss, SmoothedAlgorithm, Perturbed, FenchelYoungLoss])
def test_a_mistyped_option_is_told_by_the_class_that_was_called(smoothed):
    says = rf"^{smoothed.__name__} has no option 'num_sample'\. Did you mean 'num_samples'\? .*antithetic, quasi"
    with pytest.raises(TypeError, match=says):
        smoothed(lambda y: y, num_sample=3)
    with pytest.raises(TypeError, match=rf"^{smoothed.__name__} has no option 'quas'\. Did you mean 'quasi'"):
        smoothed(lambda y: y, quas=True)


MADE_OF = {
    SmoothedLoss: r"one value per row, here \(24,\)",
    SmoothedAlgorithm: r"one result per row, \(24, ...\)",
    Perturbed: r"one solution per row, in the shape of its costs, here \(24, 3, 3\)",
    FenchelYoungLoss: r"one solution per row, in the shape of its costs, here \(24, 3, 3\)",
}


@pytest.mark.parametrize("smoothed", MADE_OF)
def test_a_black_box_for_one_sample_hears_how_it_is_called(smoothed):
    def of_one(matrix):
        if matrix.ndim != 2:
            raise ValueError(f"expected a matrix (2-D array), got a {matrix.ndim} array")

    targets = [torch.zeros(6, 3, 3)] if smoothed is FenchelYoungLoss else []
    with pytest.raises(ValueError, match="expected a matrix") as caught:
        smoothed(of_one, num_samples=4)(torch.zeros(6, 3, 3), *targets)
    (note,) = caught.value.__notes__
    assert re.match(rf"{smoothed.__name__}: of_one raised this when .* a batch of shape \(24, 3, 3\)", note)
    assert "stacked along the first dimension: here 4 draws, for a batch of 6" in note
    assert re.search(rf"It must return {MADE_OF[smoothed]}\..*torch\.stack", note)


def test_a_target_in_a_closure_is_not_repeated_and_the_note_says_so():
    wanted = torch.zeros(6, 3)
    loss = SmoothedLoss(lambda y: (y > wanted).sum(-1), num_samples=4, variance_reduction="value")
    with pytest.raises(RuntimeError, match="must match the size") as caught:
        loss(torch.zeros(6, 3))
    (note,) = caught.value.__notes__
    assert "here 4 draws and the outputs themselves, for a batch of 6" in note
    assert "those in a closure are not" in note


def test_the_reason_against_a_second_derivative_names_draws_and_not_samples():
    y = torch.zeros(2, 3, dtype=torch.float64)
    for made in (SmoothedLoss(lambda y: (y > 0).sum(-1)), SmoothedAlgorithm(lambda y: y > 0)):
        with pytest.raises(DerivativeError, match="is estimated from draws"):
            torch.autograd.functional.hessian(lambda y, made=made: made(y).square().sum(), y)
