"""The step of middle-sized systems as one kernel in CUDA C: with its threads emulated on a CPU, and on a GPU.

Everything is compared with the formula in float64, for which `torch.linalg.solve` does not exchange what it is given.
"""

import math

import pytest
import torch
from block_kernel import assert_step, brute_force, indefinite, normal
from torch import Tensor

from newton_losses.curvature import NormalizedDamping, RelativeDamping
from newton_losses.curvature._block_step import TYPES, block_kernels, launch_block, size_for
from newton_losses.curvature._fisher import Solved, _as_solved, _plan


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def step(request, emulated):
    """The kernel itself, called with what `fisher_step` and `matrix_step` take."""
    device = "cuda" if request.param == "gpu" else "cpu"

    def solve(
        gradient, value, damping, *, kept=None, mean=False, counter=None, unit=None, matrix=None, kind=""
    ) -> Solved:
        unknowns = min(gradient.shape) if matrix is None else gradient.shape[1]
        plan = _plan(damping)
        given = [gradient, value, kept, plan.tensor, counter, matrix, unit]
        gradient, value, kept, tensor, moved, matrix, unit = (x if x is None else x.to(device) for x in given)
        if device == "cuda":
            kernels = block_kernels(gradient, unknowns)
            if kernels is None:
                pytest.skip("not a GPU for this kernel")
        else:
            kernels = emulated(size_for(unknowns), gradient.dtype)
        options = (plan.number, plan.factor, plan.normalized, mean, moved, matrix, kind == "raw", unit)
        launched = launch_block(kernels, gradient, value, kept, tensor, *options)
        if counter is not None:
            counter.copy_(moved)
        return _as_solved(tuple(x.cpu() for x in launched), value is not None, counter)

    return solve


SHAPES = [(66, 71), (73, 70)]
LONG_SHAPES = [
    (65, 100), (70, 144), (84, 200), (100, 128), (128, 100), (300, 98), (128, 140), (200, 126), (144, 160), (160, 147),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((shape, torch.float64) for shape in SHAPES),
        *(pytest.param(shape, torch.float32, marks=pytest.mark.slow) for shape in LONG_SHAPES),
        *(pytest.param(shape, torch.float64, marks=pytest.mark.slow) for shape in LONG_SHAPES),
    ],
)
def test_the_fisher(step, shape, dtype):
    gradient = normal(*shape).to(dtype)
    value = gradient.square().sum(1)
    found = step(gradient, value, 0.1)
    assert_step(found, brute_force(gradient, 0.1))
    torch.testing.assert_close(found.value, value.mean())


# Few unknowns do as well, and are soon eliminated.
@pytest.mark.parametrize("damping", [1e-4, NormalizedDamping(0.3), RelativeDamping(2.0), torch.tensor(0.1)], ids=str)
@pytest.mark.parametrize("shape", [(5, 20), (20, 5), (1, 9), (9, 1), (12, 40), (40, 12)])
def test_every_damping(step, shape, damping):
    gradient, unit = normal(*shape), torch.tensor(3.0, dtype=torch.float64)
    assert_step(step(gradient, None, damping), brute_force(gradient, damping), 1e-8)
    found = step(gradient.float(), None, damping, mean=True, unit=unit)
    assert_step(found, brute_force(gradient.float(), damping) * 3 / shape[0])
    assert found.value is None


@pytest.mark.parametrize("damping", [0.1, NormalizedDamping(0.1), RelativeDamping()], ids=str)
def test_nothing_leaves_the_range_of_numbers(step, damping):
    for shape in ((5, 20), (20, 5)):
        for dtype, power in ((torch.float32, 30), (torch.float32, -30), (torch.float64, 140), (torch.float64, -140)):
            gradient, scale = normal(*shape), 10.0**power
            rule = 0.1 * scale**2 if isinstance(damping, float) else damping
            found = step((gradient * scale).to(dtype), None, rule)
            found = found._replace(rows=found.rows.double() / (1 if isinstance(rule, NormalizedDamping) else 1 / scale))
            assert_step(found, brute_force(gradient, damping), 1e-6 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("shape", [(5, 20), (20, 5)])
def test_a_damping_beside_which_the_curvature_is_nothing(step, shape):
    gradient = 1e-150 * normal(*shape)
    assert_step(step(gradient, None, 1e150), gradient / 1e150)
    matrix = 1e-200 * torch.eye(shape[1], dtype=torch.float64)
    assert_step(step(gradient, None, 1e120, matrix=matrix), gradient / 1e120)


# With the last of them a series takes the place of the elimination.
@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
@pytest.mark.parametrize("damping", [0.1, NormalizedDamping(), NormalizedDamping(1e6)], ids=str)
def test_bad_samples_have_no_say(step, shape, damping):
    gradient, value, kept = normal(*shape), normal(shape[0]), torch.ones(shape[0], dtype=torch.bool)
    gradient[2, 3], gradient[3, 0], value[4], kept[5] = torch.inf, torch.nan, torch.nan, False
    good = [n for n in range(shape[0]) if n not in (2, 3, 4, 5)]
    counter = torch.tensor(7)
    found = step(gradient, value, damping, kept=kept, counter=counter, mean=True)
    assert found.kept.nonzero().flatten().tolist() == good
    assert int(found.count) == len(good)
    assert int(counter) == 7 + 4
    wanted = brute_force(gradient[good], damping) / len(good)
    torch.testing.assert_close(found.rows[good], wanted, rtol=1e-10, atol=1e-12)
    assert not found.rows[[2, 3, 4, 5]].any()
    torch.testing.assert_close(found.value, value[value.isfinite()].mean())


@pytest.mark.parametrize("shape", [(5, 20), (20, 5)])
def test_where_there_is_nothing(step, shape):
    zero = step(torch.zeros(shape), None, NormalizedDamping())
    assert zero.kept.all()
    assert not zero.rows.any()
    counter = torch.tensor(0)
    none = step(torch.full(shape, torch.nan), torch.full(shape[:1], torch.nan), 0.1, counter=counter)
    assert not none.kept.any()
    assert not none.rows.any()
    assert int(none.count) == 1
    assert none.value.isnan()
    assert int(counter) == shape[0]
    assert not step(torch.zeros(shape), None, RelativeDamping()).kept.any()
    for bad in (0.0, -1.0, math.nan, math.inf):
        found = step(normal(*shape), None, torch.tensor(bad))
        assert not found.kept.any()
        assert not found.rows.any()


@pytest.mark.parametrize("shape", [(5, 20), (20, 5)])
def test_a_damping_that_is_lost_beside_the_curvature_keeps_no_step(step, shape):
    """Gradients along one direction, beside which λ is rounding: as in `has_inverse`."""
    for seed in range(4):
        gradient = 1e8 * normal(shape[0], 1, seed=seed) * normal(1, shape[1], seed=seed)
        assert not step(gradient, None, 1e-4).kept.any()
    units = 10.0 ** torch.arange(-8, 9, 4).double()  # ill-conditioned, and yet solved to the last digit
    found = step(torch.diag(units), None, 1e-20)
    assert_step(found, torch.diag(units / (units.square() / 5 + 1e-20)))


def test_a_step_beyond_float32_is_left_out_as_a_whole(step):
    found = step(1e-41 * normal(5, 20).float(), None, RelativeDamping())
    assert not found.kept.any()
    assert not found.rows.any()
    found = step(torch.tensor([[1e-41, 0.0], [0.0, 1.0], [1.0, 1.0]]), None, 1e-60)
    assert found.kept.all()


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (67, torch.float64), (147, torch.float32), (8, torch.float64), (1, torch.float32),
        *(pytest.param(n, t, marks=pytest.mark.slow) for n in (70, 98, 112, 120, 144, 147) for t in TYPES),
    ],
)  # fmt: skip
def test_a_stored_matrix(step, size, dtype):
    gradient, value, matrix = normal(9, size).to(dtype), normal(9).to(dtype), indefinite(size)
    for damping in (0.1, NormalizedDamping(), RelativeDamping(0.5)) if size < 100 else (0.1,):
        found = step(gradient, value, damping, matrix=matrix, kind="raw")
        assert_step(found, brute_force(gradient, damping, matrix), 1e-9)
    definite = (matrix @ matrix / size).to(dtype)
    assert_step(step(gradient, value, 0.1, matrix=definite), brute_force(gradient, 0.1, definite))


def test_a_stored_matrix_in_other_units_and_not_symmetric(step):
    gradient, matrix = normal(15, 12), normal(12, 12)
    for power in (-140, 140):
        scale = 10.0**power
        found = step(gradient / scale, None, RelativeDamping(), matrix=matrix * scale, kind="raw")
        wanted = brute_force(gradient, RelativeDamping(), matrix)
        assert_step(found._replace(rows=found.rows * scale * scale), wanted)
    found = step(gradient, None, 1e3, matrix=1e-3 * matrix, kind="raw")
    assert_step(found, brute_force(gradient, 1e3, 1e-3 * matrix))


def test_a_stored_matrix_without_a_solution(step):
    gradient = normal(9, 12)
    singular = torch.zeros(12, 12, dtype=torch.float64).fill_diagonal_(-0.5)
    singular[0, 0] = 3.0
    assert not step(gradient, None, 0.5, matrix=singular, kind="raw").kept.any()
    for kind in ("raw", "definite"):
        broken = torch.eye(12, dtype=torch.float64)
        broken[3, 5] = broken[5, 3] = torch.nan
        for damping in (0.5, 1e9):
            assert not step(gradient, None, damping, matrix=broken, kind=kind).kept.any()
    # Its pivots are positive, but no more than what rounding leaves of its diagonal.
    rounding = torch.ones(12, 12, dtype=torch.float64) + 4 * 2.0**-52 * torch.eye(12, dtype=torch.float64)
    assert not step(gradient, None, 1e-30, matrix=rounding, kind="definite").kept.any()
    assert step(gradient, None, 1e-30, matrix=rounding, kind="raw").kept.all()
    middle = torch.eye(12, dtype=torch.float64)
    middle[3:5, 3:5] = rounding[3:5, 3:5]
    assert not step(gradient, None, 1e-30, matrix=middle, kind="definite").kept.any()
    assert step(gradient, None, 1e9, matrix=middle, kind="definite").kept.all()


@pytest.mark.parametrize("damping", [NormalizedDamping(), NormalizedDamping(1e6)], ids=str)
def test_bad_samples_beside_a_stored_matrix(step, damping):
    gradient, value, matrix = normal(9, 12), normal(9), indefinite(12)
    gradient[2, 3], value[4] = torch.inf, torch.nan
    good = [0, 1, 3, 5, 6, 7, 8]
    counter = torch.tensor(0)
    found = step(gradient, value, damping, matrix=matrix, kind="raw", counter=counter)
    assert found.kept.nonzero().flatten().tolist() == good
    assert int(counter) == 2
    wanted = brute_force(gradient[good], damping, matrix)
    torch.testing.assert_close(found.rows[good], wanted, rtol=1e-9, atol=1e-9)


# The series' error is below 2^-BITS of the solution; with 66 unknowns it has to be there after so many factors ‖C‖/λ.
BITS, FACTORS = {torch.float32: 34, torch.float64: 60}, 23


def norm_of(gradient: Tensor) -> float:
    return float((gradient.double().mT @ gradient.double()).norm()) / len(gradient)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("shape", [(66, 71), (73, 66)])
def test_a_damping_far_above_the_curvature(step, shape, dtype):
    gradient = normal(*shape).to(dtype)
    bound = 2 ** (-BITS[dtype] / FACTORS)
    for ratio in (1e-30, 0.02, 0.1, bound * (1 - 1e-6), bound * (1 + 1e-6)):
        factor = math.sqrt(shape[1]) / ratio
        for damping in (norm_of(gradient) / ratio, RelativeDamping(factor), NormalizedDamping(factor)):
            assert_step(step(gradient, None, damping), brute_force(gradient, damping), 1e-13)


@pytest.mark.parametrize(("size", "dtype"), [(67, torch.float64), (67, torch.float32), (144, torch.float32)])
def test_a_damping_far_above_a_stored_matrix(step, size, dtype):
    gradient, value, matrix = normal(9, size).to(dtype), normal(9).to(dtype), indefinite(size).to(dtype)
    positive = matrix @ matrix / size
    for kind, stored in (("raw", matrix), ("raw", -positive), ("raw", normal(size, size)), ("definite", positive)):
        for damping in (30 * float(stored.norm()), RelativeDamping(400.0), NormalizedDamping(400.0)):
            found = step(gradient, value, damping, matrix=stored, kind=kind)
            assert_step(found, brute_force(gradient, damping, stored), 1e-13)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_the_series_is_taken_where_it_is_faster(emulated, dtype):
    """That is, with a round per three unknowns or fewer. A round has two barriers, an elimination one per unknown."""
    gradient = normal(66, 71).to(dtype)
    kernels = emulated(size_for(66), dtype)

    def barriers(ratio: float) -> int:
        launch_block(kernels, gradient, None, None, None, norm_of(gradient) / ratio, 0.0, False, False, None)
        return kernels.barriers

    besides, bound = barriers(1e-30), 2 ** (-BITS[dtype] / FACTORS)
    for ratio in (1e-4, 0.02, 0.1, bound * (1 - 1e-6)):
        rounds = math.ceil(BITS[dtype] / -math.log2(ratio)) - 1
        assert barriers(ratio) == besides + 2 * rounds
    for ratio in (bound * (1 + 1e-6), 0.9, 1.1, 1e4):
        assert barriers(ratio) == besides + 66


def apart(tensor: Tensor) -> Tensor:
    """The same numbers, not side by side in memory."""
    return torch.stack([tensor, torch.zeros_like(tensor)], -1).unbind(-1)[0]


def test_tensors_may_be_stored_in_any_way(step):
    gradient, value, kept, matrix = normal(12, 9), normal(12), torch.arange(12) != 5, normal(9, 9)
    for options in ({"matrix": matrix, "kind": "raw"}, {"matrix": (3 * matrix).half(), "kind": "raw"}, {}):
        wanted = step(gradient, value, 0.5, kept=kept, **options)
        there = {name: apart(one) if name == "matrix" else one for name, one in options.items()}
        for damping in (0.5, torch.tensor(0.5, dtype=torch.float16), torch.tensor(0.5, dtype=torch.float64)):
            found = step(apart(gradient), apart(value), damping, kept=apart(kept), **there)
            assert all(map(torch.equal, found[:4], wanted[:4]))
