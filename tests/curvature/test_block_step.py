"""The step of middle-sized systems as one kernel in CUDA C: with its threads emulated on a CPU, and on a GPU.

Everything is compared with the formula in float64, for which `torch.linalg.solve` does not exchange what it is given.
"""

import ctypes
import math
import shutil
import subprocess
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import newton_losses as nl
from newton_losses.curvature import (
    Dense,
    Expansion,
    NormalizedDamping,
    RelativeDamping,
    fisher_step,
    newton_step,
)
from newton_losses.curvature import _block_step as block_step
from newton_losses.curvature import _fisher as fisher
from newton_losses.curvature._block_step import SIZES, block_kernels, launch_block
from newton_losses.curvature._fisher import Solved, _as_solved, _plan
from newton_losses.nvrtc import CudaError
from on_cuda import capture, no_synchronisation
from paths.path_kernels import kernels_of

HERE = Path(__file__).parent
KERNELS = Path(block_step.__file__).parent
# What a GPU would refuse, and an x86 does not: a pair of numbers at an odd place.
CHECKED = ["-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"]


class Emulated:
    """The kernel as a library of the host, in the place of `Kernels`; its threads take turns from either end."""

    def __init__(self, folder: Path, size: int, dtype: torch.dtype) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("no C++ compiler")
        library = folder / f"block_step_{size}_{dtype}.so"
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-I", KERNELS, *CHECKED]
        defined = [f"-DSIZE={size}", f"-DNUMBER={block_step.TYPES[dtype]}"]
        subprocess.run([*command, *defined, HERE / "emulated_block_step.cpp", "-o", library], check=True)
        self.library = ctypes.CDLL(str(library))
        self.backwards = False

    def launch_struct(self, name: str, blocks: int, threads: int, shared: int, given: bytes) -> None:
        self.backwards = not self.backwards
        used = self.library.run_block_step(blocks, int(self.backwards), given)
        assert used >= 0, "threads wait for each other"
        assert used <= shared


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return cache(partial(Emulated, tmp_path_factory.mktemp("emulated")))


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
            kernels = emulated(next(size for size in SIZES if size >= unknowns), gradient.dtype)
        options = (plan.number, plan.factor, plan.normalized, mean, moved, matrix, kind == "raw", unit)
        launched = launch_block(kernels, gradient, value, kept, tensor, *options)
        if counter is not None:
            counter.copy_(moved)
        return _as_solved(tuple(x.cpu() for x in launched), value is not None, counter)

    return solve


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def brute_force(gradient: Tensor, damping: object, matrix: Tensor | None = None) -> Tensor:
    """By the formula, in float64."""
    gradient = gradient.double()
    curvature = gradient.mT @ gradient / len(gradient) if matrix is None else matrix.double()
    number = damping
    if not isinstance(damping, (float, Tensor)):
        number = damping.factor * float(curvature.norm()) / math.sqrt(len(curvature))
    damped = curvature + number * torch.eye(len(curvature), dtype=torch.float64)
    solved = torch.linalg.solve(damped, gradient.mT).mT
    return solved * number / gradient.square().mean().sqrt() if isinstance(damping, NormalizedDamping) else solved


def assert_step(found: Solved, wanted: Tensor, tolerance: float = 1e-10) -> None:
    if found.rows.dtype == torch.float32:
        tolerance = 1e-6
    close = {"rtol": tolerance, "atol": tolerance * float(wanted.abs().max())}
    torch.testing.assert_close(found.rows.double(), wanted, **close)
    assert found.kept.all()
    assert int(found.count) == len(wanted)


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


@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
@pytest.mark.parametrize("damping", [0.1, NormalizedDamping()], ids=str)
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


def indefinite(size: int) -> Tensor:
    """Symmetric, with zeros on its diagonal: not to be eliminated without an exchange of rows."""
    matrix = normal(size, size)
    return (matrix + matrix.mT).fill_diagonal_(-0.1 if size > 1 else 2.0)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (67, torch.float64), (147, torch.float32), (8, torch.float64), (1, torch.float32),
        *(pytest.param(n, t, marks=pytest.mark.slow) for n in (70, 98, 112, 120, 144, 147) for t in block_step.TYPES),
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
        assert not step(gradient, None, 0.5, matrix=broken, kind=kind).kept.any()
    # Its pivots are positive, but no more than what rounding leaves of its diagonal.
    rounding = torch.ones(12, 12, dtype=torch.float64) + 4 * 2.0**-52 * torch.eye(12, dtype=torch.float64)
    assert not step(gradient, None, 1e-30, matrix=rounding, kind="definite").kept.any()
    assert step(gradient, None, 1e-30, matrix=rounding, kind="raw").kept.all()
    middle = torch.eye(12, dtype=torch.float64)
    middle[3:5, 3:5] = rounding[3:5, 3:5]
    assert not step(gradient, None, 1e-30, matrix=middle, kind="definite").kept.any()


def test_bad_samples_beside_a_stored_matrix(step):
    gradient, value, matrix = normal(9, 12), normal(9), indefinite(12)
    gradient[2, 3], value[4] = torch.inf, torch.nan
    good = [0, 1, 3, 5, 6, 7, 8]
    counter = torch.tensor(0)
    found = step(gradient, value, NormalizedDamping(), matrix=matrix, kind="raw", counter=counter)
    assert found.kept.nonzero().flatten().tolist() == good
    assert int(counter) == 2
    wanted = brute_force(gradient[good], NormalizedDamping(), matrix)
    torch.testing.assert_close(found.rows[good], wanted, rtol=1e-9, atol=1e-9)


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


@pytest.fixture
def chosen(emulated, monkeypatch):
    """The choice of the kernel, as if the tensors here were on a GPU."""
    monkeypatch.setattr(fisher, "_fits_block", lambda *given: True)
    monkeypatch.setattr(block_step, "block_kernels", lambda gradient, unknowns: emulated(SIZES[0], gradient.dtype))
    return fisher._by_block


@pytest.mark.parametrize("unit", [3.0, torch.tensor(3.0)], ids=str)
def test_what_is_chosen_gets_everything(chosen, unit):
    gradient, value, kept, counter = normal(12, 30), normal(12), torch.arange(12) != 5, torch.tensor(1)
    value[2] = torch.nan
    for damping in (0.1, torch.tensor(0.1), NormalizedDamping()):
        found = chosen(gradient, value, _plan(damping), kept, True, counter, unit=unit)
        wanted = fisher_step(gradient, value, damping, kept=kept, mean=True)
        torch.testing.assert_close(found.rows, 3 * wanted.rows, rtol=1e-9, atol=1e-12)
        assert torch.equal(found.kept, wanted.kept)
        torch.testing.assert_close(found.value, value.nanmean())
    assert found.counted
    assert int(counter) == 1 + 3 * 2
    assert chosen(gradient, value, _plan(1e-80), kept, True, counter) is None


@pytest.mark.parametrize("kind", ["raw", "absolute", "clip", "definite"])
def test_what_is_chosen_knows_every_spectrum(chosen, kind):
    gradient, value, matrix = normal(9, 12), normal(9), indefinite(12)
    matrix = matrix @ matrix if kind == "definite" else matrix
    for damping in (0.1, RelativeDamping(0.5), NormalizedDamping()):
        found = chosen(gradient, value, _plan(damping), None, False, None, matrix, kind)
        if kind == "clip" and not isinstance(damping, float):
            assert found is None  # λ would be relative to what is clipped away
            continue
        expansion = Expansion(value, gradient, Dense(matrix, semidefinite=kind == "definite"))
        wanted = newton_step(expansion, damping, "raw" if kind == "definite" else kind)
        torch.testing.assert_close(found.rows, wanted.rows, rtol=1e-8, atol=1e-9)
        assert not found.counted


class Broken:
    def __init__(self, *given: object, **options: object) -> None:
        raise CudaError("NVRTC: nothing works today.")


def test_a_compiler_that_fails_is_reported_once(monkeypatch):
    """And a GPU that the kernel is not for is not worth a word."""
    properties = type("Properties", (), {"shared_memory_per_block_optin": 232_448})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(block_step, "compiler", lambda: True)
    monkeypatch.setattr(block_step, "Kernels", Broken)
    monkeypatch.setattr(block_step, "_kernels", {})
    gradient = normal(70, 144)
    with pytest.warns(UserWarning, match="70 unknowns could not be built; .* NVRTC: nothing works today"):
        assert block_kernels(gradient, 70) is None
    assert block_kernels(gradient, 70) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert block_kernels(gradient, 100) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert block_kernels(gradient, 140) is None
    assert len(block_step._kernels) == 2


def on_gpu(gradient: Tensor) -> Tensor:
    if block_kernels(gradient.cuda(), min(gradient.shape)) is None:
        pytest.skip("not a GPU for this kernel")
    return gradient.cuda()


def one_kernel(function) -> None:
    function()
    assert [name for name in kernels_of(function) if "block_step" not in name] == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(block_step.TYPES))
@pytest.mark.parametrize("shape", [(70, 144), (128, 100)])
def test_a_step_on_a_gpu_is_one_kernel(shape, dtype):
    gradient = on_gpu(normal(*shape).to(dtype))
    value, counter, unit = gradient.square().sum(1), torch.tensor(0, device="cuda"), torch.tensor(2.0).to(gradient)
    options = {"mean": True, "counter": counter, "unit": unit, "kept": torch.ones(shape[0], dtype=torch.bool).cuda()}
    for damping in (0.1, torch.tensor(0.1, device="cuda"), RelativeDamping()):
        one_kernel(lambda damping=damping: fisher_step(gradient, value, damping, **options))
    assert_step(Solved(*(x.cpu() for x in fisher_step(gradient, value, 0.1)[:3])), brute_force(gradient.cpu(), 0.1))
    with torch.autocast("cuda", torch.bfloat16):
        again = fisher_step(gradient, value, 0.1)
    assert torch.equal(again.rows, fisher_step(gradient, value, 0.1).rows)
    turned = gradient.mT.contiguous().mT
    assert torch.equal(fisher_step(turned, value, 0.1).rows, again.rows)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "damping"), [("raw", 0.1), ("absolute", NormalizedDamping()), ("clip", 0.1)])
def test_a_stored_matrix_on_a_gpu_equals_the_operators(kind, damping):
    gradient, value, matrix = on_gpu(normal(70, 144).float()), normal(70).float(), indefinite(144)
    gradient[3, 0] = torch.nan
    expansion = Expansion(value, gradient.cpu(), Dense(matrix))
    wanted = newton_step(expansion, damping, kind)
    found = newton_step(Expansion(value.cuda(), gradient, Dense(matrix.cuda())), damping, kind)
    assert torch.equal(found.kept.cpu(), wanted.kept)
    torch.testing.assert_close(found.rows.cpu(), wanted.rows, rtol=1e-4, atol=1e-5 * float(wanted.rows.abs().max()))
    if kind == "raw":
        given = Expansion(value.cuda(), gradient, Dense(matrix.cuda()))
        names = kernels_of(lambda: newton_step(given, damping, kind))
        assert sum("block_step" in name for name in names) == 1
        assert not [name for name in names if "getrf" in name or "trsm" in name]


@pytest.mark.gpu
def test_it_is_captured_and_nothing_waits():
    gradient = on_gpu(normal(70, 144).float())
    value = gradient.square().sum(1)
    for damping in (0.1, torch.tensor(0.1)):
        wanted = fisher_step(gradient, value, damping)
        with no_synchronisation():
            graph, found = capture(lambda damping=damping: fisher_step(gradient, value, damping))
        graph.replay()
        assert torch.equal(found.rows, wanted.rows)


@pytest.mark.gpu
def test_before_it_is_compiled_a_graph_takes_the_operators(monkeypatch):
    gradient = on_gpu(normal(70, 144).float())
    wanted = fisher_step(gradient, None, 0.1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    from newton_losses.curvature._fisher import _by_operators

    _by_operators(gradient, None, _plan(0.1), None, False)  # the libraries behind it have to be loaded
    torch.cuda.synchronize()
    monkeypatch.setattr(block_step, "_kernels", {})
    with torch.cuda.graph(graph):
        found = fisher_step(gradient, None, 0.1)
    assert block_step._kernels == {}
    graph.replay()
    torch.testing.assert_close(found.rows, wanted.rows, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [False, True])
def test_it_is_compiled_without_a_break(kept):
    gradient = on_gpu(normal(70, 144).float())
    value, mask = gradient.square().sum(1), torch.arange(70, device="cuda") != 5 if kept else None
    step = partial(fisher_step, damping=0.1, kept=mask, mean=True)
    compiled = torch.compile(lambda g, v: step(g, v).rows, fullgraph=True)
    torch.testing.assert_close(compiled(gradient, value), step(gradient, value).rows)


@pytest.mark.gpu
def test_a_newton_loss_launches_few_kernels_more():
    y, target = (normal(128, 100, seed=seed).float().cuda() for seed in (0, 1))
    on_gpu(y)
    y.requires_grad_()

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return torch.sin(y - target).square().sum(1)

    def kernels(function) -> int:
        for _ in range(3):
            function(y, target).backward()
        return len(kernels_of(lambda: function(y, target).backward()))

    plain = kernels(lambda y, target: loss(y, target).mean())
    assert kernels(nl.NewtonLoss(loss, "fisher", damping=0.1)) <= plain + 10
