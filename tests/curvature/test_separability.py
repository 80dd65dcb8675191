"""Which samples are compared when a loss is asked whether it mixes them."""

import pytest
import torch
from torch import Tensor

from newton_losses import NewtonLoss, SeparabilityError, check_loss

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


def test_a_loss_with_noise_of_its_own_needs_no_second_look() -> None:
    noise = torch.Generator().manual_seed(0)
    assert check_loss(lambda y: (y + torch.randn(3, generator=noise)).square().sum(1), torch.ones(4, 3)) is True
