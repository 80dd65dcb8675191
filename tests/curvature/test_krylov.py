"""Spectra of a curvature that is known by its products alone: those of the stored one, and bounded in any case."""

import pytest
import torch
from torch import Tensor

from cases import Case, assert_close, ripples
from newton_losses import Expansion, newton_target
from newton_losses.curvature import Dense, Products, damped_solve, newton_step
from newton_losses.curvature._iterative import solve_in_krylov_space
from newton_losses.curvature._solve import _cholesky, _definite_part, matrix_sign


def indefinite(size: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (drawn + drawn.mT) / 2


def rows_of(count: int, size: int) -> Tensor:
    return torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def products(matrix: Tensor) -> Products:
    return Products(lambda rows: rows @ matrix.to(rows.dtype), len(matrix), matrix)


@pytest.mark.parametrize("spectrum", ["absolute", "clip"])
@pytest.mark.parametrize("size", [1, 2, 5, 20, 40])
def test_equals_the_stored_matrix(size: int, spectrum: str) -> None:
    """Up to 50 outputs the space is all of them."""
    matrix, rows = indefinite(size), rows_of(4, size)
    rows[1] = 0.0
    wanted = damped_solve(Dense(matrix), rows, 0.3, spectrum)
    assert_close(damped_solve(products(matrix), rows, 0.3, spectrum), wanted, 1e-10)
    # rounding of float32, times a condition below ‖C‖/λ = 40
    assert_close(damped_solve(products(matrix), rows.float(), 0.3, spectrum), wanted.float(), 1e-5)


@pytest.mark.parametrize("matrix", [torch.zeros(6, 6), 3 * torch.eye(6), torch.ones(6, 6), torch.diag(torch.eye(6)[0])])
def test_few_different_eigenvalues(matrix: Tensor) -> None:
    """The space is complete after one or two steps, and what is left over is rounding."""
    matrix, rows = -matrix.double(), rows_of(3, 6)
    assert_close(
        damped_solve(products(matrix), rows, 0.5, "absolute"), damped_solve(Dense(matrix), rows, 0.5, "absolute"), 1e-12
    )


@pytest.mark.parametrize("iterations", [1, 2, 5, 50])
def test_stopped_early_it_descends_and_is_no_longer_than_the_damped_gradient(iterations: int) -> None:
    matrix, rows = indefinite(300), rows_of(10, 300)
    found = damped_solve(products(matrix), rows, 2.0, "absolute", iterations=iterations)
    assert ((found * rows).sum(1) > 0).all()
    assert (found.norm(dim=1) <= rows.norm(dim=1) / 2.0).all()


def test_most_of_the_curvature_is_in_fifty_steps() -> None:
    """Of 300 random eigenvalues of both signs, with λ their root mean square; definite ones converge to 1e-6."""
    matrix, rows = indefinite(300), rows_of(10, 300)
    for given, error in ((matrix, 0.02), (matrix @ matrix, 1e-5)):
        damping = float(given.square().sum().div(300).sqrt())
        wanted = damped_solve(Dense(given), rows, damping, "absolute")
        found = damped_solve(products(given), rows, damping, "absolute")
        assert (found - wanted).norm() < error * wanted.norm()


def test_rows_that_do_not_fit_into_memory_go_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, rows = indefinite(8), rows_of(5, 8)
    wanted = damped_solve(products(matrix), rows, 0.3, "absolute")
    monkeypatch.setattr("newton_losses.curvature._iterative.BASIS_ELEMENTS", 130)  # two rows of 8 × 8
    asked = []

    def product(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return rows @ matrix

    assert_close(damped_solve(Products(product, 8, matrix), rows, 0.3, "absolute"), wanted, 1e-13)
    assert set(asked) == {2, 1}


def test_each_row_has_its_own_damping() -> None:
    matrix, rows = indefinite(6), rows_of(3, 6)
    column = torch.tensor([[0.1], [1.0], [10.0]], dtype=torch.float64)
    found, far = solve_in_krylov_space(
        products(matrix), rows, column, lambda t, b, damping: _definite_part(t, "absolute", damping, b), 50, 1e-9
    )
    assert not far.any()
    for row, damping, one in zip(rows, column, found, strict=True):
        assert_close(one, damped_solve(Dense(matrix), row[None], float(damping), "absolute")[0], 1e-10)


def test_what_a_device_does_with_a_batch_of_small_matrices() -> None:
    """There, eigenvalues are told apart by products: the sign of each matrix, and a Cholesky factor of each."""
    batch = torch.stack([indefinite(5, seed) for seed in range(3)])
    rows, damping = rows_of(3, 5)[:, None], torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)[:, None, None]
    assert_close(matrix_sign(batch), torch.stack([matrix_sign(one) for one in batch]), 1e-13)
    absolute = batch @ matrix_sign(batch)
    found = _cholesky((absolute + absolute.mT) / 2, rows, damping)
    assert_close(found, _definite_part(batch, "absolute", damping, rows), 1e-9)


@pytest.mark.parametrize("spectrum", ["absolute", "clip"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (3, 7), (4, 2, 3)])
def test_a_loss_without_a_stored_hessian(shape: tuple[int, ...], spectrum: str) -> None:
    """With one λ for both, since that of products is an estimate."""
    y, target = Case(ripples, shape).draw()
    options = {"curvature": "hessian", "spectrum": spectrum, "damping": 1.0}
    stored = newton_target(ripples, y, target, **options)
    assert_close(newton_target(ripples, y, target, matrix_free=True, **options).step, stored.step, 1e-9)


def test_nothing_finite_gives_no_step() -> None:
    y, target = Case(ripples, (3, 4)).draw()
    found = newton_target(ripples, y, target * torch.nan, matrix_free=True, curvature="hessian")
    assert not found.kept.any()
    assert not found.step.any()


def hard(kind: str) -> Tensor:
    """400 eigenvalues over six orders of magnitude, or over four and of both signs."""
    vectors = torch.linalg.qr(rows_of(400, 400))[0]
    if kind == "convex":
        values = torch.logspace(-2, 4, 400, dtype=torch.float64)
    else:
        values = torch.logspace(-2, 2, 400, dtype=torch.float64) * torch.tensor([1.0, -1.0]).repeat(200)
    return (vectors * values) @ vectors.mT


@pytest.mark.parametrize(("kind", "damping"), [("convex", 0.01), ("convex", 1.0), ("indefinite", 0.1)])
@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
def test_what_does_not_converge_is_solved_with_the_matrix(kind: str, damping: float, spectrum: str) -> None:
    """After 100 steps, 13 to 95 % of the solution was missing without a word."""
    matrix, rows = hard(kind), rows_of(8, 400)
    wanted = damped_solve(Dense(matrix), rows, damping, spectrum)
    assert_close(damped_solve(products(matrix), rows, damping, spectrum), wanted, 1e-6)


def test_where_the_matrix_would_be_large_what_does_not_converge_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("newton_losses.curvature._solve.LARGEST_DIRECT", 100)
    matrix = hard("convex")
    # The last has parts along three eigenvectors only, and converges.
    rows = torch.cat([rows_of(3, 400), torch.linalg.eigh(matrix)[1][:, -3:].sum(1)[None]])
    found = damped_solve(products(matrix), rows, 0.01)
    assert found[:3].isnan().all()
    assert_close(found[3:], damped_solve(Dense(matrix), rows[3:], 0.01), 1e-5)
    for scale in (1e-6, 1e6):  # whatever the unit of the gradients
        assert torch.equal(damped_solve(products(matrix), scale * rows, 0.01).isnan(), found.isnan())
    step = newton_step(Expansion(torch.zeros(4), rows, products(matrix)), 0.01)
    assert step.kept.tolist() == [False, False, False, True]


@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
def test_each_row_can_have_a_damping_of_its_own(spectrum: str) -> None:
    """One iteration is not enough: the matrix itself is solved."""
    matrix, rows = indefinite(40), rows_of(4, 40)
    damping = torch.tensor([[0.3], [0.5], [1.0], [2.0]], dtype=torch.float64)
    alone = [
        damped_solve(Dense(matrix), row, float(number), spectrum)
        for row, number in zip(rows.split(1), damping, strict=True)
    ]
    assert_close(damped_solve(products(matrix), rows, damping, spectrum, iterations=1), torch.cat(alone), 1e-10)


def test_a_space_is_no_more_complete_where_the_curvature_is_small() -> None:
    matrix, rows = indefinite(20), rows_of(4, 20)
    wanted = damped_solve(products(matrix), rows, 0.3, "absolute")
    found = damped_solve(products(1e-15 * matrix), rows, 0.3e-15, "absolute")
    assert_close(1e-15 * found, wanted, 1e-10)
