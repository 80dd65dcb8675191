"""Which samples are compared when a loss is asked whether it mixes them, and that asking leaves the loss as it was."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from newton_losses import NewtonLoss, SeparabilityError, check_loss
from newton_losses.smoothing import SmoothedLoss

# Each part of a batch keeps its outputs while the rest changes: the first half, every other sample, and some by chance.
FIRST_HALF, EVERY_OTHER, BY_CHANCE = [(0, 4), (3, 5)], [(0, 3), (4, 1)], [(1, 0), (5, 6)]


@pytest.mark.parametrize(("one", "other"), [*FIRST_HALF, *EVERY_OTHER, *BY_CHANCE])
def test_one_sample_that_looks_at_one_other_is_found(one: int, other: int) -> None:
    """Two of the three parts would not tell: the pair is kept, or changed, as a whole."""

    def loss(y: Tensor) -> Tensor:
        seen = torch.zeros_like(y[:, 0])
        seen[one] = y[other].detach().sum()
        return y.square().sum(1) + seen

    with pytest.raises(SeparabilityError, match="mixes the samples"):
        check_loss(loss, torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))


def test_an_empty_batch_tells_nothing() -> None:
    newton = NewtonLoss(lambda y: (y - y.mean(0)).square().sum(1))
    newton(torch.zeros(0, 3, requires_grad=True))
    assert not check_loss(newton.loss, torch.zeros(0, 3))
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        newton(torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True))


def test_a_loss_with_noise_that_nobody_finds_needs_no_second_look() -> None:
    hidden = [torch.Generator().manual_seed(0)]
    assert check_loss(lambda y: (y + torch.randn(3, generator=hidden[0])).square().sum(1), torch.ones(4, 3)) is True


def test_a_loss_that_mixes_samples_cannot_hide_behind_its_own_noise() -> None:
    noise = torch.Generator().manual_seed(0)
    y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    assert check_loss(lambda y: (y + torch.randn(3, generator=noise)).square().sum(1), y)
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        check_loss(lambda y: (y - y.roll(1, 0) + torch.randn(3, generator=noise)).square().sum(1), y)


# Outputs that broadcast against targets ------------------------------------------------------------------------------


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


BROADCAST = {
    "rows": (lambda y, t: (y - t).square().sum(1), (16, 1), (16,), "target.unsqueeze(1) or y.squeeze(1)"),
    "mean": (lambda y, t: (y - t).abs().mean(), (16, 1), (16,), "target.unsqueeze(1) or y.squeeze(1)"),
    "columns": (lambda y, t: (y - t).square().mean(0), (16,), (16, 1), "target.squeeze(1) or y.unsqueeze(1)"),
    "images": (lambda y, t: (y - t).square().sum((1, 2)), (16, 1, 3), (16, 3), "Reshape the target to (16, 1, 3)"),
    "largest": (lambda y, t: (y - t).amax(1), (16, 1), (16,), "(16, 1)"),
}


@pytest.mark.parametrize("kind", BROADCAST)
def test_targets_of_other_samples_are_found(kind: str) -> None:
    """The set of the others' targets has to change: exchanged among themselves they leave a sum over all as it is."""
    loss, outputs, targets, cure = BROADCAST[kind]
    y, target = drawn(*outputs), drawn(*targets, seed=1)
    with pytest.raises(SeparabilityError) as raised:
        check_loss(loss, y, target)
    for words in (f"Outputs of shape {outputs}", f"targets of shape {targets}", cure):
        assert words in str(raised.value)
    with pytest.raises(SeparabilityError, match="broadcast"):
        check_loss(lambda y, t: loss(y, t["wanted"]), y, {"wanted": target})
    with pytest.raises(SeparabilityError, match="broadcast"):
        NewtonLoss(loss)(y.requires_grad_(), target)


def test_other_mixing_is_not_blamed_on_shapes() -> None:
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        check_loss(lambda y, t: (y - y.mean(0)).square().sum(1) * t, drawn(16, 1), drawn(16, seed=1))


def weighted(y: Tensor, t: Tensor) -> Tensor:
    """The mean over the classes, whose weights come from the targets."""
    weight = torch.where(t > 0, (t <= 0).sum() / (t > 0).sum(), 1.0)
    return (weight * (y.squeeze(1) - t).square()).sum() / weight.sum()


def ragged(y: Tensor, t: Tensor, rows: list[Tensor]) -> Tensor:
    """Each target chooses from a row of its own length."""
    chosen = torch.stack([row[int(place)] for row, place in zip(rows, t, strict=True)])
    return (y.squeeze(1) - chosen).square()


def test_targets_of_another_shape_are_no_fault_and_take_one_further_call() -> None:
    calls = []

    def counted(loss: Any) -> Any:
        return lambda *given: calls.append(1) or loss(*given)

    y, target = drawn(16, 1), drawn(16, seed=1)
    table = drawn(16, 4, seed=2)
    for loss, outputs, *wanted in (
        (lambda y, t, shared: (y - t[:, None]).square().sum(1) + (y - shared.sum(1)).abs().sum(1), y, target, table),
        (lambda y, t: (y - t[:, None]).square().sum(1), y, target),
        (lambda y, t: (y.squeeze(1) - t).abs(), y, target),
        (lambda y, t: t * y.square().sum(1), y, target),
        (lambda y, t: (y.squeeze(1) - t).abs(), y - 10, target),  # far from its kinks
        (weighted, y, target),
        (ragged, y, torch.arange(16), [drawn(1 + length) for length in range(16)]),
        (lambda y, t: (y - t.squeeze(1)).square(), y.squeeze(1), target[:, None]),
        (lambda y, t: (y - t).square().sum(1), drawn(16, 16), drawn(16, 16, seed=1)),
        (lambda y, shared: (y - shared).square().sum(1), drawn(16, 16), target),  # which has one entry per output
        (lambda y, shared: torch.cdist(y, shared).sum(1), drawn(3, 3), drawn(3, 3, seed=1)),
    ):
        calls.clear()
        assert check_loss(counted(loss), outputs, *wanted)
        assert len(calls) <= 6


# What a loss keeps ---------------------------------------------------------------------------------------------------


class Centring(nn.Module):
    """A running mean of the outputs, in place and as a new tensor; and noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        self.mean.lerp_(y.detach().mean(0).to(self.mean.dtype), 0.1)
        self.count = self.count + 1
        self.noise = torch.rand(3, generator=self.generator)
        return (y - target - self.mean - self.noise.to(y)).square().sum(1)

    def called(self, y: Tensor, target: Tensor) -> Tensor:
        return self(y, target)


class Holder:
    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        return self.loss(y, target)


HELD = {
    "itself": lambda loss: loss,
    "a partial": lambda loss: functools.partial(loss, target=torch.zeros(16, 3)),
    "an argument of a partial": lambda loss: functools.partial(lambda own, y, t: own(y, t), loss),
    "a bound method": lambda loss: loss.called,
    "a closure": lambda loss: lambda y, t: loss(y, t),
    "an attribute": Holder,
    "a method of what has it as an attribute": lambda loss: Holder(loss).__call__,
}


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("curvature", ["fisher", "hessian"])
def test_the_first_call_changes_a_loss_as_one_plain_call_does(kind: str, curvature: Any) -> None:
    checked, plain = Centring(), Centring()
    mean, count, loss = checked.mean, checked.count, HELD[kind](checked)
    y, targets = 3 + drawn(16, 3), () if kind == "a partial" else (torch.zeros(16, 3),)
    check_loss(loss, y, *targets)
    assert checked.mean is mean
    assert checked.count is count
    assert (float(mean.abs().max()), float(count)) == (0.0, 0.0)
    assert torch.equal(checked.generator.get_state(), plain.generator.get_state())
    unchecked = NewtonLoss(HELD[kind](plain), curvature=curvature, check=False)
    for newton in (unchecked, NewtonLoss(loss, curvature=curvature)):
        newton(y.clone().requires_grad_(), *targets).backward()
    torch.testing.assert_close(checked.mean, plain.mean)
    assert checked.count == plain.count
    assert torch.equal(checked.generator.get_state(), plain.generator.get_state())


class Counting(nn.Module):
    """A running mean in a buffer, corrected by the number of calls, which is an attribute; and by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.calls, self.is_ready, self.first = 0, False, None

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        self.mean.lerp_(target.mean(0).to(self.mean.dtype), 0.1)
        if not self.is_ready:
            self.first, self.is_ready = target.mean(0), True
        if not hasattr(self, "second"):
            self.second = 2 * target.mean(0)
        assert self.first is not None
        return (y - self.mean / (1 - 0.9**self.calls) - (self.first + self.second).to(y)).square().sum(1)


@pytest.mark.parametrize("kind", ["itself", "a closure", "a bound method"])
def test_numbers_and_flags_are_put_back_with_the_buffers_that_they_are_about(kind: str) -> None:
    y, target = torch.zeros(8, 3), torch.full((8, 3), 2.0)
    Counting.called = Counting.forward  # type: ignore[attr-defined]
    for check in (True, False):
        loss = Counting()
        newton = NewtonLoss(HELD[kind](loss), check=check)
        assert newton(y.clone().requires_grad_(), target).item() == 3 * 8.0**2
        assert loss.calls == 1
    loss = Counting()
    check_loss(loss, y, target)
    assert (loss.calls, loss.is_ready, loss.first, hasattr(loss, "second")) == (0, False, None, False)


class Held(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return (self.weight.to(y) * (y - target).square()).sum(1)


class Growing(Held):
    """It gives its buffer another shape in place."""

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        self.weight.data = torch.cat([self.weight, torch.ones(3)])
        return (y - target).square().sum(1)


def test_a_buffer_that_only_may_be_read_is_not_written(tmp_path: Path) -> None:
    np.save(tmp_path / "weight.npy", np.ones(3, dtype=np.float32))
    script = (
        "import torch, numpy as np; from test_separability import Held; from newton_losses.curvature import check_loss;"
        f"check_loss(Held(torch.from_numpy(np.load({str(tmp_path / 'weight.npy')!r}, mmap_mode='r'))),"
        "torch.randn(4, 3), torch.zeros(4, 3))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    # In a process of its own, which writing would end.
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment)


def test_buffers_that_are_expanded_or_change_their_shape_are_no_obstacle() -> None:
    y, target = drawn(4, 3), torch.zeros(4, 3)
    assert check_loss(Held(torch.tensor(2.0).expand(3)), y, target)
    growing = Growing(torch.zeros(3))
    assert check_loss(growing, y, target)
    assert growing.weight.tolist() == [0.0, 0.0, 0.0]


def test_a_smoothed_loss_in_a_closure_keeps_its_random_state() -> None:
    smoothed = SmoothedLoss(lambda y, t: (y > t).sum(1), generator=torch.Generator().manual_seed(3))
    before = smoothed.generator.get_state()
    check_loss(lambda y, t: smoothed(y, t), drawn(8, 3), drawn(8, 3, seed=1))
    assert torch.equal(smoothed.generator.get_state(), before)


def test_a_check_that_fails_leaves_the_loss_as_it_was() -> None:
    norm = nn.BatchNorm1d(3)
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        check_loss(lambda y: norm(y).square().sum(1), drawn(8, 3))
    assert int(norm.num_batches_tracked) == 0
    assert float(norm.running_mean.abs().max()) == 0


def test_a_graph_through_a_buffer_outlives_the_check() -> None:
    """Of a call before, whose backward pass is still to come: the buffer is not written as far as autograd knows."""
    module = nn.Module()
    module.register_buffer("weight", torch.ones(3))
    module.forward = lambda y: (module.weight * y).square().sum(1)
    y = drawn(4, 3).requires_grad_()
    waiting = module(y).sum()
    check_loss(module, y)
    waiting.backward()


def test_a_buffer_made_in_inference_mode_is_no_obstacle() -> None:
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("shift", torch.ones(3))
    assert check_loss(lambda y: (y + module.shift).square().sum(1), drawn(4, 3))
