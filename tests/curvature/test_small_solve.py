"""The one-kernel solve of small systems on a GPU against torch's own."""

import pytest
import torch

from newton_losses.curvature._small_solve import is_small, small_solve

pytestmark = pytest.mark.gpu


def matrices(size):
    generator = torch.Generator().manual_seed(size)
    gradients = torch.randn(100, size, generator=generator, dtype=torch.float64)
    fisher = gradients.mT @ gradients / 100 + 0.1 * torch.eye(size, dtype=torch.float64)
    hollow = torch.randn(size, size, generator=generator, dtype=torch.float64)
    hollow = hollow + hollow.mT
    hollow.fill_diagonal_(0 if size > 1 else -2.0)  # no elimination without an exchange of rows
    return fisher.cuda(), hollow.cuda()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 10, 15, 16, 17, 32])
@pytest.mark.parametrize("count", [1, 33, 100])
def test_equal_to_torchs_solve(size, count):
    rows = torch.randn(count, size, dtype=torch.float64).cuda()
    fisher, hollow = matrices(size)
    for matrix, definite in ((fisher, True), (fisher, False), (hollow, False)):
        wanted = torch.linalg.solve(matrix, rows.mT).mT
        torch.testing.assert_close(small_solve(matrix, rows, definite), wanted, rtol=1e-8, atol=1e-8)


def test_not_definite_is_nan_where_it_has_to_be():
    rows = torch.ones(2, 2, dtype=torch.float64).cuda()
    indefinite = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)).cuda()
    assert small_solve(indefinite, rows, True).isnan().all()
    assert torch.equal(small_solve(indefinite, rows, False), rows * torch.tensor([1.0, -1.0]).cuda())
    assert not small_solve(torch.full_like(indefinite, torch.nan), rows, False).isfinite().any()
    assert not small_solve(torch.zeros_like(indefinite), rows, False).isfinite().any()


def test_steps_aside_where_it_cannot_serve():
    matrix, rows = torch.eye(3, dtype=torch.float64).cuda(), torch.ones(4, 3, dtype=torch.float64).cuda()
    assert is_small(matrix, rows)
    assert not is_small(matrix.cpu(), rows.cpu())
    assert not is_small(torch.eye(33, dtype=torch.float64).cuda(), rows)
    assert not is_small(matrix, rows.clone().requires_grad_())
    assert not is_small(matrix, rows[:0])
