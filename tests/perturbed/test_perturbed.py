"""Perturbed optimizers against the softmax, and a Gaussian closed form."""

import pytest
import torch

from newton_losses import ShapeError
from newton_losses.perturbed import Perturbed
from newton_losses.smoothing import Gumbel
from smoothing.standard_errors import assert_unbiased

SCORES = torch.tensor([0.3, -0.5, 0.8, 0.1], dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def argmax(scores):
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])


def argmin(scores):
    return argmax(-scores)


@pytest.mark.parametrize("reduction", ["none", "value", "leave_one_out"])
@pytest.mark.parametrize(
    ("minimize", "antithetic", "quasi"),
    [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_gumbel_noise_gives_the_softmax_and_its_jacobian(reduction, minimize, antithetic, quasi):
    scale = 0.6
    layer = Perturbed(
        argmin if minimize else argmax,
        scale,
        8,
        minimize=minimize,
        distribution=Gumbel(),
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(1),
    )
    sign = -1 if minimize else 1

    def softmax(scores):
        return torch.softmax(sign * scores / scale, -1)

    y = SCORES.expand(40_000, 4)
    assert_unbiased(layer(y), softmax(SCORES), 0.01, "output")
    jacobian = torch.func.jacrev(softmax)(SCORES)
    assert_unbiased(layer.jacobian(y), jacobian, 0.015, "jacobian")


def test_backward_through_a_perturbed_argmax():
    """The gradient of ⟨softmax(y), v⟩, in the mean of many samples."""
    scale, direction = 0.6, torch.tensor([1.0, 0.0, -2.0, 0.5], dtype=torch.float64)
    layer = Perturbed(argmax, scale, 8, minimize=False, distribution=Gumbel(), generator=generator(2))
    y = SCORES.repeat(40_000, 1).requires_grad_()
    (layer(y) @ direction).sum().backward()
    expected = torch.func.grad(lambda y: torch.softmax(y / scale, -1) @ direction)(SCORES)
    assert_unbiased(y.grad, expected, 0.04)


def test_an_index_is_not_a_solution():
    with pytest.raises(ShapeError, match=r"returned shape \(22,\) for costs of shape \(22, 3\).*one-hot"):
        Perturbed(lambda scores: scores.argmax(-1))(torch.zeros(2, 3))
