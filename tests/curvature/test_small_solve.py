"""The one-kernel solve of small systems on a GPU against torch's own.

The tests marked `gpu` run on CUDA, and, but for those that need a device, in Triton's interpreter on the CPU too.
"""

import math

import pytest
import torch
from torch.autograd import forward_ad

from newton_losses.curvature import (
    Dense,
    Expansion,
    NormalizedDamping,
    damped_solve,
    empirical_fisher,
    newton_step,
)
from newton_losses.curvature._small_solve import is_small, small_solve
from on_cuda import capture, no_synchronisation
from triton_interpreter import DEVICE, on_cuda_alone, run_interpreted

# The interpreter is numpy, which warns about what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZES = [1, 2, 5, 8, 10, 16, 17, 32]


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


def normal(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype)


def hollow(size):
    """Symmetric and indefinite, and no elimination without an exchange of rows."""
    matrix = normal(size, size)
    matrix = matrix + matrix.mT
    return matrix.fill_diagonal_(0 if size > 1 else -2.0)


def with_eigenvalues(values):
    vectors = torch.linalg.qr(normal(len(values), len(values)))[0]
    matrix = (vectors * torch.as_tensor(values, dtype=torch.float64)) @ vectors.mT
    return (matrix + matrix.mT) / 2


def solve(matrix, rows, damping, kind):
    """With λ as a number and in a tensor, which are equal to the last digit."""
    matrix, rows = matrix.to(DEVICE), rows.to(DEVICE)
    by_number = small_solve(matrix, rows, None, damping, kind)
    by_tensor = small_solve(matrix, rows, torch.tensor(damping, dtype=torch.float64).to(DEVICE), 0.0, kind)
    assert by_number.dtype == rows.dtype
    torch.testing.assert_close(by_number, by_tensor, rtol=0, atol=0, equal_nan=True)
    return by_number.cpu()


def damped(matrix, damping):
    return matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 60])
def test_equal_to_torchs_solve(size, count):
    rows = normal(count, size)
    gradient = normal(100, size)
    # So little damping is no help where rows have to be exchanged.
    for matrix, kind, damping in ((gradient.mT @ gradient / 100, "definite", 0.1), (hollow(size), "raw", 1e-12)):
        wanted = torch.linalg.solve(damped(matrix, damping), rows.mT).mT
        torch.testing.assert_close(solve(matrix, rows, damping, kind), wanted, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(solve(matrix, rows.float(), damping, kind), wanted.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("damping", [0.1, 1 / 3, 1e-300, 16.0, 1.0])
def test_a_number_keeps_all_its_digits(damping):
    rows = torch.ones(1, 2, dtype=torch.float64)
    torch.testing.assert_close(
        solve(torch.zeros(2, 2, dtype=torch.float64), rows, damping, "definite"), rows / damping, rtol=1e-15, atol=0
    )


@pytest.mark.gpu
def test_not_definite_is_nan_where_it_has_to_be():
    rows = torch.ones(2, 2, dtype=torch.float64)
    indefinite = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert solve(indefinite, rows, 0.5, "definite").isnan().all()
    assert torch.equal(solve(indefinite, rows, 3.0, "raw"), rows / torch.tensor([4.0, 2.0]))
    assert not solve(-damped(torch.zeros_like(indefinite), 1.0), rows, 1.0, "raw").isfinite().any()
    assert solve(indefinite, rows, math.nan, "raw").isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [5, 17])
def test_a_damping_that_is_lost_in_rounding_has_no_solution(size):
    """Two gradients in more directions than two: what is left of a later pivot is rounding, of either sign."""
    for seed in range(20):
        gradient = torch.randn(2, size, generator=torch.Generator().manual_seed(seed)).double()
        singular = gradient.mT @ gradient
        assert solve(singular, gradient, 1e-18, "definite").isnan().all()
        assert solve(singular, gradient, 1e-6, "definite").isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["definite", "raw", "absolute", "clip"])
@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_has_no_solution(kind, place, bad):
    matrix = with_eigenvalues([1.0, 2.0, 3.0, 4.0, 5.0])
    matrix[place, 0] = matrix[0, place] = bad
    assert not solve(matrix, normal(3, 5), 0.1, kind).isfinite().any()


SPECTRA = {
    "spread": [-1e3, 1e3, -1.0, 0.5, -1e-2, 1e-4, 1e-6, -1e-6, 1e-8, -1e-8],
    "with zeros": [-2.0, 0.0, 0.0, 1.0, -1e-3],
    "repeated": [3.0, 3.0, -3.0, -3.0, -3.0],
    "zero": [0.0, 0.0, 0.0],
    "one": [-7.0],
    "large": [(-1) ** i * 10.0 ** (i / 8 - 2) for i in range(32)],
}


@pytest.mark.gpu
@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize("kind", ["absolute", "clip"])
def test_equal_to_the_eigenvalues(values, kind):
    matrix, rows = with_eigenvalues(values), normal(20, len(values))
    largest = max(map(abs, values)) or 1.0
    found, vectors = torch.linalg.eigh(matrix)
    found = found.abs() if kind == "absolute" else found.clamp(min=0)
    for relative in (1.0, 1e-3, 1e-6):
        damping = relative * largest
        wanted = (rows @ vectors / (found + damping)) @ vectors.mT
        # |C| is off by up to 1e-10 of its largest eigenvalue, next to λ.
        error = (solve(matrix, rows, damping, kind) - wanted).norm() / wanted.norm()
        assert error <= 1e-10 / relative


@pytest.mark.gpu
def test_the_operators_are_what_they_say():
    matrix, rows, number = (tensor.to(DEVICE) for tensor in (hollow(3), normal(4, 3).float(), torch.tensor(0.1)))
    torch.library.opcheck(small_solve, (matrix, rows, None, 0.1, "raw"))
    torch.library.opcheck(small_solve, (matrix, rows, number, 0.0, "absolute"))


def step(gradient, damping, form):
    """The step of a batch in which not all samples are kept, with the curvature that `form` makes."""
    return newton_step(Expansion(gradient.new_zeros(len(gradient)), gradient, form(gradient)), damping)


def fisher(gradient):
    return empirical_fisher(gradient, gradient.isfinite().all(1))


def indefinite(gradient):
    first = gradient[:10] + torch.arange(10.0, device=gradient.device)
    return Dense((first + first.mT).nan_to_num())


def assert_same_step(found, wanted):
    torch.testing.assert_close(found.rows.cpu(), wanted.rows.cpu(), rtol=1e-5, atol=1e-5)
    assert torch.equal(found.kept.cpu(), wanted.kept.cpu())
    assert torch.equal(found.count.cpu(), wanted.count.cpu())


def gradients(samples):
    gradient = normal(samples, 10, dtype=torch.float32)
    gradient[3] = torch.nan
    return gradient


DAMPINGS = [0.1, torch.tensor(0.1), NormalizedDamping()]


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.parametrize("samples", [100, 20_000])
@pytest.mark.parametrize("damping", DAMPINGS, ids=["number", "tensor on the host", "auto"])
@pytest.mark.parametrize("form", [fisher, indefinite])
def test_steps_equal_those_of_a_cpu(samples, damping, form):
    gradient = gradients(samples)
    assert_same_step(step(gradient.cuda(), damping, form), step(gradient, damping, form))


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.parametrize("damping", DAMPINGS, ids=["number", "tensor on the host", "auto"])
@pytest.mark.parametrize("form", [fisher, indefinite])
def test_nothing_waits_for_the_device_and_all_is_captured_in_a_graph(damping, form):
    gradient = gradients(100).cuda()
    wanted = step(gradient, damping, form)
    with no_synchronisation():
        graph, found = capture(lambda: step(gradient, damping, form))
    graph.replay()
    assert_same_step(found, wanted)


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.slow
@pytest.mark.parametrize("damping", [0.1, NormalizedDamping()], ids=["number", "auto"])
@pytest.mark.parametrize("form", [fisher, indefinite])
def test_compiled_as_one_graph(damping, form):
    gradient = gradients(100).cuda()
    compiled = torch.compile(lambda g: step(g, damping, form).rows, fullgraph=True)
    torch.testing.assert_close(compiled(gradient), step(gradient, damping, form).rows, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@on_cuda_alone
def test_derivatives_and_transforms_go_by_torch():
    matrix, rows = hollow(3).cuda(), normal(4, 3).cuda()
    assert torch.autograd.gradcheck(lambda r: damped_solve(Dense(matrix), r, 0.1), rows.clone().requires_grad_())
    found = torch.func.vmap(lambda r: damped_solve(Dense(matrix), r, 0.1))(rows[None])
    torch.testing.assert_close(found[0], damped_solve(Dense(matrix), rows, 0.1))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(rows, torch.ones_like(rows))
        tangent = forward_ad.unpack_dual(damped_solve(Dense(matrix), dual, 0.1)).tangent
    torch.testing.assert_close(tangent, damped_solve(Dense(matrix), torch.ones_like(rows), 0.1))


@pytest.mark.gpu
@on_cuda_alone
def test_steps_aside_where_it_cannot_serve():
    matrix, rows = torch.eye(3, dtype=torch.float64).cuda(), torch.ones(4, 3, dtype=torch.float64).cuda()
    assert is_small(matrix, rows)
    assert not is_small(matrix.cpu(), rows.cpu())
    assert not is_small(torch.eye(33, dtype=torch.float64).cuda(), rows)
    assert not is_small(matrix, rows.clone().requires_grad_())
    assert not is_small(matrix, rows, torch.ones((), requires_grad=True))
    assert not is_small(matrix, rows[:0])
