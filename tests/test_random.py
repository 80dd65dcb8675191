"""Torch's global random state is the user's."""

import pytest
import torch
from torch import Tensor

from newton_losses import NewtonLoss, diagnose
from newton_losses._random import seeded


def noisy(y: Tensor) -> Tensor:
    return (y + torch.randn(y.shape, device=y.device)).pow(4).sum(1)


def use(device: str = "cpu") -> None:
    """What calls a loss with a seed of its own: the check of the first call, and `diagnose`."""
    y = torch.randn(6, 2, device=device, generator=torch.Generator(device).manual_seed(0))
    with seeded(3, y.device):
        NewtonLoss(noisy, curvature="hessian")(y.requires_grad_())
    diagnose(noisy, y.detach())


def test_a_seed_holds_inside_only() -> None:
    before = torch.get_rng_state()
    with seeded(7):
        first = torch.rand(3)
    with seeded(7):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_generators_of_other_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` would seed all GPUs, and nobody could put that back without waking them up."""
    before, seeds = torch.get_rng_state(), []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    use()
    assert seeds == []
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_generator_of_a_gpu_is_left_alone(device: str) -> None:
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    use(device)
    assert torch.equal(torch.cuda.get_rng_state(), before)
