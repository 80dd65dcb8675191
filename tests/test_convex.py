"""Parameters with the empirical Fisher behind them, against the formula."""

import pytest
import torch

from newton_losses import ArgumentError
from newton_losses.convex import repeat_with_fisher

GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_is_that_of_the_formula(count: int, reduction: str) -> None:
    weight, bias, x = draw(3, 4).requires_grad_(), draw(3).requires_grad_(), draw(count, 4)
    weights, biases = repeat_with_fisher((weight, bias), count, damping=0.3, reduction=reduction)
    losses = (torch.relu(torch.einsum("nij,nj->ni", weights, x) + biases) - 1).square().sum(1)
    getattr(losses, reduction)().backward()

    rows = []
    for row in x:
        loss = (torch.relu(weight @ row + bias) - 1).square().sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, (weight, bias))]))
    gradient = torch.stack(rows)
    fisher = gradient.mT @ gradient / count
    step = torch.linalg.solve(fisher + 0.3 * torch.eye(15, dtype=torch.float64), gradient.mT).mT
    expected = getattr(step, reduction)(0)
    found = torch.cat([weight.grad.flatten(), bias.grad.flatten()])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_value_is_untouched() -> None:
    weight = draw(2, 3)
    (repeated,) = repeat_with_fisher((weight,), 5)
    assert torch.equal(repeated, weight.expand(5, 2, 3))


def test_an_iterator_of_parameters_is_as_good_as_a_list() -> None:
    layer = torch.nn.Linear(3, 2)
    assert [tuple(part.shape) for part in repeat_with_fisher(layer.parameters(), 5)] == [(5, 2, 3), (5, 2)]


def test_mistakes() -> None:
    with pytest.raises(ArgumentError, match="no parameters"):
        repeat_with_fisher((), 3)
    with pytest.raises(ArgumentError, match=r"parameters is one tensor.*\(weight, bias\)"):
        repeat_with_fisher(draw(2), 3)
    with pytest.raises(ArgumentError, match="parameters have to be a tensor, got float"):
        repeat_with_fisher([1.0], 3)
    with pytest.raises(ArgumentError, match="at least 1"):
        repeat_with_fisher((draw(2),), 0)
