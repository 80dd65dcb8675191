"""The solvers against explicit inverses."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cases import assert_close
from newton_losses import ArgumentError, Expansion
from newton_losses.curvature import Dense, Exchangeable, LowRank, Products, damped_solve, newton_step
from newton_losses.curvature._solve import matrix_sign


def draw(seed: int, rows: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(rows, size, generator=generator, dtype=torch.float64) for _ in range(2))
    return a, b


def symmetric(seed: int, size: int) -> Tensor:
    a, _ = draw(seed, size, size)
    return (a + a.mT) / 2


def inverse(matrix: Tensor, damping: float) -> Tensor:
    return torch.linalg.inv(matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 8), size=st.integers(1, 8), power=st.integers(-4, 4))
def test_woodbury_equals_cholesky_equals_inverse(seed: int, rows: int, size: int, power: int) -> None:
    factor, gradient = draw(seed, rows, size)
    damping = 10.0**power
    wanted = gradient @ inverse(factor.mT @ factor, damping)
    assert_close(damped_solve(LowRank(factor), gradient, damping), wanted, 1e-10)
    assert_close(damped_solve(Dense(factor.mT @ factor, semidefinite=True), gradient, damping), wanted, 1e-10)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_indefinite_raw(size: int) -> None:
    matrix, (_, gradient) = symmetric(size, size), draw(1, 3, size)
    assert_close(damped_solve(Dense(matrix), gradient, 0.5), gradient @ inverse(matrix, 0.5), 1e-10)


@pytest.mark.parametrize("spectrum", ["absolute", "clip"])
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_spectrum(spectrum: str, size: int) -> None:
    matrix, (_, gradient) = symmetric(size, size), draw(1, 3, size)
    values, vectors = torch.linalg.eigh(matrix)
    values = values.abs() if spectrum == "absolute" else values.clamp(min=0)
    definite = vectors @ torch.diag(values) @ vectors.mT
    wanted = gradient @ inverse(definite, 0.5)
    assert_close(damped_solve(Dense(matrix), gradient, 0.5, spectrum), wanted, 1e-10)


@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
def test_spectrum_of_outputs_whose_order_has_no_meaning(spectrum: str) -> None:
    among, common = torch.tensor([-2.0, 3.0], dtype=torch.float64)
    _, gradient = draw(1, 3, 4)
    for form in (
        Exchangeable(among, common, 4, torch.tensor(3), torch.tensor(9)),
        Exchangeable(common, among, 4, torch.tensor(3), torch.tensor(9)),
    ):
        wanted = damped_solve(Dense(form.dense()), gradient, 0.5, spectrum)
        assert_close(damped_solve(form, gradient, 0.5, spectrum), wanted, 1e-10)


def test_lists_of_one_item_have_no_differences() -> None:
    among, common = torch.tensor([2.0, 3.0], dtype=torch.float64)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    form = Exchangeable(among, common, 3, torch.tensor(2), torch.tensor(2), mask)
    found = damped_solve(form, torch.full((2, 3), 7.0, dtype=torch.float64), 0.5)
    assert found.tolist() == [[2.0, 0.0, 0.0], [2.0, 2.0, 2.0]]


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_matrix_sign_by_products_equals_the_eigenvalues(size: int) -> None:
    matrix = symmetric(size, size)
    values, vectors = torch.linalg.eigh(matrix)
    assert_close(matrix_sign(matrix), vectors @ torch.diag(values.sign()) @ vectors.mT, 1e-10)
    singular = matrix - matrix.mean(1, keepdim=True)  # rows sum to zero, like the Hessian of a ranking loss
    singular = singular - singular.mean(0, keepdim=True)
    values, vectors = torch.linalg.eigh(singular)
    wanted = vectors @ torch.diag(values.abs()) @ vectors.mT
    # not the sign itself is wanted where an eigenvalue is zero, but the absolute value that it gives
    assert torch.linalg.matrix_norm(singular @ matrix_sign(singular) - wanted) <= 1e-9 * (1 + size)
    assert matrix_sign(torch.zeros(3, 3)).abs().sum() == 0


@pytest.mark.parametrize("definite", [True, False])
def test_matrix_free(definite: bool) -> None:
    """The iterative solver is exact after as many rounds as there are outputs, indefinite or not."""
    matrix = symmetric(3, 20)
    matrix = matrix @ matrix if definite else matrix
    _, gradient = draw(1, 3, 20)
    gradient[1] = 0.0
    form = Products(lambda rows: rows @ matrix, 20, matrix)
    found = damped_solve(form, gradient, 0.3, iterations=200, tolerance=1e-12)
    # the tolerance is one of the residual; the solution's error is that times the condition number
    assert_close(found, gradient @ inverse(matrix, 0.3), 1e-9)
    assert_close(form.dense(), matrix, 1e-12)


def test_matrix_free_where_a_product_with_the_matrix_is_zero() -> None:
    """b(C + λI)bᵀ = 0: conjugate gradients and residuals would divide by it."""
    matrix = torch.diag(torch.tensor([3.0, -5.0]))
    found = damped_solve(Products(lambda rows: rows @ matrix, 2, matrix), torch.tensor([[1.0, 1.0], [0.0, 0.0]]), 1.0)
    assert_close(found, torch.tensor([[0.25, -0.25], [0.0, 0.0]]), 1e-6)


def test_matrix_free_in_float32() -> None:
    """Indefinite systems, none of them close to singular; some of them were off by tens of per cent once."""
    for seed in range(200):
        values, vectors = torch.linalg.eigh(symmetric(seed, 20))
        values = 3 * values + values.sign()
        matrix = (vectors * values) @ vectors.mT
        _, rows = draw(seed, 4, 20)
        single = matrix.float()
        found = damped_solve(Products(lambda rows, single=single: rows @ single, 20, single), rows.float(), 0.3)
        assert_close(found.double(), rows @ inverse(matrix, 0.3), 2e-3)


def test_refuses_an_unknown_spectrum() -> None:
    with pytest.raises(ArgumentError, match="it can be 'raw'"):
        damped_solve(Dense(torch.eye(3)), torch.ones(1, 3), 1.0, "sideways")


@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
def test_a_singular_or_poisoned_system_gives_non_finite_rows_and_no_exception(spectrum: str) -> None:
    ones = torch.ones(1, 2)
    if spectrum == "raw":
        assert not torch.isfinite(damped_solve(Dense(-torch.eye(2)), ones, 1.0)).any()
    poisoned = torch.tensor([[torch.nan, 0.0], [0.0, 1.0]])
    assert not torch.isfinite(damped_solve(Dense(poisoned), ones, 1.0, spectrum)).all()
    products = Products(lambda rows: rows @ poisoned, 2, poisoned)
    assert not torch.isfinite(damped_solve(products, ones, 1.0, spectrum)).all()


def test_small_damping_survives_float32_gradients() -> None:
    """λ = 1e-3 next to a curvature of 1e8: in float32 the matrix would be singular."""
    gradient = [[10000, 10000], [10000, 10001]]
    # C + λI = [[a, b], [b, d]] in exact fractions, and its inverse by the adjugate
    a, b, d = (Fraction(sum(row[i] * row[j] for row in gradient), 2) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, d = a + Fraction(1, 1000), d + Fraction(1, 1000)
    wanted = [[(x * d - y * b) / (a * d - b * b), (y * a - x * b) / (a * d - b * b)] for x, y in gradient]
    rows = torch.tensor(gradient, dtype=torch.float32)
    # the condition number is 2e11: of the 16 digits of float64 these are left
    for form in (
        LowRank(rows.double() / 2**0.5),
        Dense(rows.double().mT @ rows.double() / 2, semidefinite=True),
    ):
        found = damped_solve(form, rows, 1e-3)
        assert_close(found, torch.tensor([[float(x) for x in row] for row in wanted]), 1e-4)


@pytest.mark.parametrize(("spectrum", "semidefinite"), [(None, True), ("raw", False), ("absolute", False)])
def test_a_step_in_float32_is_solved_with_all_digits_of_the_matrix(spectrum: str | None, semidefinite: bool) -> None:
    """With eigenvalues from 10⁶ to nearly none beside λ = 0.2, a solution in float32 would have two digits."""
    turn, _ = torch.linalg.qr(draw(0, 4, 4)[0])
    matrix = ((turn * torch.tensor([1e6, 1e3, 1.0, 1e-3])) @ turn.mT).float()
    matrix, gradient = (matrix + matrix.mT) / 2, draw(1, 5, 4)[0].float()
    step = newton_step(Expansion(torch.zeros(5), gradient, Dense(matrix, semidefinite)), 0.2, spectrum)
    assert_close(step.rows, gradient.double() @ inverse(matrix.double(), 0.2), 1e-5)


def counted(values: Tensor) -> tuple[Products, list[int]]:
    """A diagonal matrix by its products, and the numbers of rows that were asked for."""
    asked: list[int] = []

    def product(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return rows * values

    return Products(product, len(values), values), asked


@pytest.mark.parametrize("spectrum", ["absolute", "clip"])
def test_products_are_few_where_they_converge_and_no_more_than_fifty_where_they_do_not(spectrum: str) -> None:
    easy, hard = 1 + 0.01 * draw(0, 1, 300)[0][0], torch.logspace(-2, 4, 1100, dtype=torch.float64)
    form, asked = counted(easy)
    assert_close(damped_solve(form, draw(1, 2, 300)[0], 0.01, spectrum), draw(1, 2, 300)[0] / (easy + 0.01), 1e-6)
    assert sum(asked) < 40
    form, asked = counted(hard)  # too large for the matrix itself
    damped_solve(form, draw(1, 2, 1100)[0], 0.01, spectrum)
    assert asked == [2] * 50
    for iterations in (1, 7):
        form, asked = counted(hard)
        damped_solve(form, draw(1, 2, 1100)[0], 0.01, spectrum, iterations=iterations)
        assert asked == [2] * iterations


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_whether_products_lead_to_a_solution_does_not_depend_on_units(unit: float) -> None:
    """A matrix of 400 unknowns is made where they do not."""
    values, rows = torch.logspace(-2, 4, 400, dtype=torch.float64), draw(0, 2, 400)[0]
    found = damped_solve(counted(values)[0], unit * rows, 0.01, "absolute")
    assert_close(found / unit, rows / (values + 0.01), 1e-10)
    easy = 1 + 0.01 * draw(0, 1, 300)[0][0]
    form, asked = counted(easy)
    damped_solve(form, unit * draw(1, 2, 300)[0], 0.01, "absolute")
    assert sum(asked) < 40


@pytest.mark.parametrize("size", [3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spectrum", ["raw", "absolute", "clip"])
def test_a_matrix_stored_by_columns_is_damped_as_well(spectrum: str, dtype: torch.dtype, size: int) -> None:
    """As torch.func.hessian and torch.linalg return them: a diagonal of their copy is not theirs."""
    indefinite, definite = symmetric(0, size).to(dtype), (symmetric(1, size) @ symmetric(1, size)).to(dtype)
    gradient = draw(2, 4, size)[0].to(dtype)
    for matrix, semidefinite in ((indefinite, False), (definite, False), (definite, True)):
        by_columns = matrix.T.contiguous().T
        one, other = (
            newton_step(Expansion(torch.ones(4), gradient, Dense(stored, semidefinite)), 50.0, spectrum).rows
            for stored in (matrix, by_columns)
        )
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(
        other.double(), gradient.double() @ inverse(definite.double(), 50.0), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("spectrum", "values"), [("raw", [3.0, -2.0]), ("absolute", [3.0, 2.0]), ("clip", [3.0, 0.0])])
def test_a_step_by_its_spectrum_leaves_the_curvature_as_it_was(spectrum, values, dtype) -> None:
    matrix = torch.diag(torch.tensor([3.0, -2.0], dtype=dtype))
    curvature, gradient = Dense(matrix.clone()), torch.ones(4, 2, dtype=dtype)
    found = newton_step(Expansion(torch.zeros(4, dtype=dtype), gradient, curvature), 0.5, spectrum)
    torch.testing.assert_close(found.rows, gradient / (torch.tensor(values, dtype=dtype) + 0.5))
    assert torch.equal(curvature.matrix, matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_that_the_damping_makes_singular_leaves_all_out_without_a_warning(dtype) -> None:
    curvature, gradient = Dense(torch.diag(torch.tensor([-1.0, 2.0], dtype=dtype))), torch.ones(4, 2, dtype=dtype)
    assert not newton_step(Expansion(torch.zeros(4, dtype=dtype), gradient, curvature), 1.0, "raw").kept.any()
