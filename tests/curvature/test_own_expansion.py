"""Losses that bring their own expansion: what they are asked for, and what becomes of it."""

import pytest
import torch
from torch import Tensor

from cases import assert_close
from newton_losses import Expansion, NewtonLoss, expand
from newton_losses.curvature import Dense, LowRank, newton_step


def test_a_loss_brings_its_own_expansion() -> None:
    class Own:
        def expand(self, y: Tensor, target: Tensor, *, curvature: str | None) -> Expansion:
            assert not torch.is_grad_enabled()
            return Expansion(y.sum((1, 2)), (y - target).flatten(1), torch.eye(6) if curvature else None)

    y, target = torch.ones(2, 3, 2), torch.zeros(2, 3, 2)
    found = expand(Own(), y, target)
    assert_close(found.curvature.dense(), torch.eye(6), 0)
    assert expand(Own(), y, target, curvature=None).curvature is None


@pytest.mark.parametrize(("kind", "said", "wanted"), [("fisher", False, True), ("hessian", True, True),
                                                     ("hessian", False, False)])  # fmt: skip
def test_a_brought_matrix_is_semidefinite_if_it_says_so_or_is_a_fisher(kind: str, said: bool, wanted: bool) -> None:
    class Own:
        def expand(self, y: Tensor, *, curvature: str | None) -> Expansion:
            return Expansion(y.sum(1), y, Dense(torch.eye(3), semidefinite=said))

    assert expand(Own(), torch.ones(2, 3), curvature=kind).curvature.semidefinite is wanted


def test_no_sample_of_a_loss_with_its_own_expansion_and_one_output_each() -> None:
    class Own:
        def expand(self, y: Tensor, *, curvature: str | None) -> Expansion:
            raise AssertionError("there is nothing to expand")

    assert expand(Own(), torch.zeros(0)).gradient.shape == (0, 1)


@pytest.mark.parametrize("semidefinite", [False, True])
@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_leaves_what_was_brought_as_it_was(dtype: torch.dtype, spectrum: str, semidefinite: bool) -> None:
    """On a CPU a matrix is damped in place, so it has to be a copy."""
    given = torch.ones(4), torch.arange(12.0).to(dtype).reshape(4, 3), torch.eye(3, dtype=dtype)
    before = [one.clone() for one in given]
    value, gradient, matrix = given
    newton_step(Expansion(value.to(dtype), gradient, Dense(matrix, semidefinite=semidefinite)), 2.0, spectrum)
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize("has_scale", [False, True])
def test_one_sample_that_explodes_is_shortened_in_a_factor_too(has_scale: bool) -> None:
    """The rows of the gradient that a loss brings are in its factor, or are said to be."""

    class Own:
        def expand(self, y: Tensor, *, curvature: str | None) -> Expansion:
            gradient, root = 4 * y**3, len(y) ** 0.5
            form = LowRank(gradient / root, scale=torch.tensor(root) if has_scale else None)
            return Expansion((y**4).sum(1), gradient, form if curvature else None)

    newton = NewtonLoss(Own(), "fisher", check=False)
    batches = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    batches[1, 0] *= 20
    norms = []
    for batch in batches:
        y = batch.clone().requires_grad_()
        newton(y).backward()
        norms.append(float(y.grad.norm()))
    assert norms[1] < 10 * norms[0]
