"""The Triton kernels: exact paths equal the CPU's bit by bit, relaxed ones equal the plain form, and both step aside
where they cannot run.

The tests marked `gpu` run on CUDA, and, but for those that need a device, in Triton's interpreter on the CPU too:
`test_in_the_interpreter` starts them so in a process of their own, because Triton decides when it is imported.
"""

from itertools import product

import path_maps
import pytest
import torch
from path_kernels import kernels_of
from torch._subclasses import FakeTensorMode

from newton_losses.errors import ArgumentError
from newton_losses.paths import PathLoss, RelaxedBellmanFord, _bellman_ford, _dispatch, solve
from newton_losses.paths._dispatch import solver
from on_cuda import capture, no_synchronisation
from triton_interpreter import DEVICE, INTERPRETED, on_cuda_alone, run_interpreted

LARGE = pytest.mark.slow  # in the interpreter
FAINT = 1e-18  # what the position drops
VARIANTS = tuple(product(("for", "while"), ("probabilistic", "yager")))

# torch's own forward mode still scripts its formulas when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


def make_costs(kind, count, shape, dtype=torch.float64):
    if kind == "zero":
        costs = torch.zeros(count, *shape)
    elif kind == "huge":
        costs = 10.0 ** (20 * path_maps.make_maps("uniform", count, *shape, seed=4) - 2)  # up to beyond the 1e12 of FAR
    else:
        costs = path_maps.make_maps(kind, count, *shape, seed=3)
    return costs.to(DEVICE, dtype)


def weights_like(costs):
    """What the path's gradient is asked for: every cell by itself."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(costs.shape, dtype=torch.float64, generator=generator).to(costs)


def path_and_gradient(backend, costs, *settings):
    """By the hand-written gradient of the back end."""
    leaf = costs.clone().requires_grad_()
    path = RelaxedBellmanFord(*settings, backend=backend)(leaf)
    return path.detach(), torch.autograd.grad(path, leaf, weights_like(costs))[0]


def plain_path_and_gradient(costs, *settings):
    """By torch's own derivatives of the definition."""
    path, pullback = torch.func.vjp(RelaxedBellmanFord(*settings, backend="torch"), costs)
    return path, pullback(weights_like(costs))[0]


SHAPES = [(1, 1), (2, 3), (5, 7), (12, 12), (32, 32)]
# A kernel is compiled for each number of iterations and power of two: so only some of these are combined.
CASES = [
    *(("uniform", 2, shape, 2) for shape in [(1, 1), (1, 3), (4, 1), (2, 3)]),
    ("uniform", 1, (5, 7), 1),
    ("zero", 1, (1, 3), 5),  # half and half of the position come to the start: 1 exactly, where min(1, a + b) bends
    *((kind, 1, (5, 7), 18) for kind in ("tied", "zero", "huge", "clamped")),
    ("uniform", 1, (12, 12), 18),
    ("uniform", 1, (32, 32), 36),
    *(
        pytest.param(kind, count, shape, 18, marks=LARGE)
        for kind in ("uniform", "tied", "zero", "huge", "terrain", "integer")
        for count in (1, 70)
        for shape in SHAPES
    ),
    *(pytest.param("uniform", 70, shape, n, marks=LARGE) for shape, n in [((2, 3), 2), ((5, 7), 1), ((16, 64), 36)]),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("loop", "conorm"), VARIANTS)
@pytest.mark.parametrize(("kind", "count", "shape", "iterations"), CASES)
def test_equals_the_plain_form(kind, count, shape, iterations, loop, conorm):
    costs = make_costs(kind, count, shape)
    settings = (4.0, iterations, loop, conorm)
    found = path_and_gradient("triton", costs, *settings)
    if kind == "huge":  # distances beyond 1e12 have no digits left for differences
        assert all(result.isfinite().all() for result in found)
        assert ((found[0] >= 0) & (found[0] <= 1)).all()
        return
    # The two sum in another order, and where the iterations do not reach everywhere, a distance is 1e12 and a little.
    tolerance = 1e-12 if iterations >= max(shape) or iterations <= 2 else 2 * 4.0 * 1e12 * 2**-52
    for result, right in zip(found, plain_path_and_gradient(costs, *settings), strict=True):
        size = right.abs().max().clamp(min=1.0).item()
        torch.testing.assert_close(result, right, rtol=tolerance, atol=tolerance * size)


@pytest.mark.gpu
@pytest.mark.parametrize(("loop", "conorm"), VARIANTS)
@pytest.mark.parametrize(
    ("kind", "count", "shape"),
    [
        ("uniform", 2, (5, 7)),
        *(pytest.param(kind, 70, (12, 12), marks=LARGE) for kind in ("uniform", "tied", "terrain")),
    ],
)
def test_float32_is_as_exact_as_the_torch_path(kind, count, shape, loop, conorm):
    """Both sum the same terms, in another order and with another exponential: so the errors are alike in size."""
    costs = make_costs(kind, count, shape, torch.float32)
    settings = (10.0, 18 if count == 70 else 9, loop, conorm)
    exact = plain_path_and_gradient(costs.double(), *settings)
    found, by_torch = (path_and_gradient(backend, costs, *settings) for backend in ("triton", "torch"))
    for result, other, right in zip(found, by_torch, exact, strict=True):
        assert result.dtype == torch.float32
        size = right.abs().max().clamp(min=1.0)
        assert (result - right).abs().max() <= 4 * (other - right).abs().max() + 1e-6 * size


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
@pytest.mark.parametrize(("loop", "conorm"), VARIANTS)
@pytest.mark.parametrize("iterations", [3, 6])
def test_what_is_not_a_number_goes_the_same_way(iterations, loop, conorm):
    costs = make_costs("uniform", 5, (4, 5))
    costs[1, 2, 2] = torch.nan
    costs[2, 1:3, :4] = torch.inf
    costs[3] = torch.inf
    costs[4, 0, 1] = -torch.inf
    settings = (4.0, iterations, loop, conorm)
    found, expected = (path_and_gradient(backend, costs, *settings) for backend in ("triton", "torch"))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12, equal_nan=True)
    # The gradient of a path that is NaN may be NaN or 0; that of every other map is what it would be alone.
    usable = expected[0].isfinite().all(-1).all(-1)
    assert usable.tolist() == [True, False, True, False, False]
    torch.testing.assert_close(found[1][usable], expected[1][usable], rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
def test_what_is_faint_is_dropped():
    costs = make_costs("uniform", 3, (4, 5))
    found, expected = (path_and_gradient(backend, costs, 40.0, 8) for backend in ("triton", "torch"))
    assert torch.equal(found[0] == 0, expected[0] == 0)
    path = found[0]
    assert (path == 0).any()
    assert path[path != 0].min() > FAINT


@pytest.mark.gpu
@pytest.mark.parametrize("beta", [0.1, 1e5])
def test_all_digits_of_beta_count(beta):
    costs = make_costs("uniform", 1, (3, 4))
    found, expected = (path_and_gradient(backend, costs, beta, 5, "while") for backend in ("triton", "torch"))
    for result, right in zip(found, expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-12, atol=1e-14 * beta)


@pytest.mark.gpu
def test_strides_halves_and_no_maps():
    costs = make_costs("uniform", 3, (4, 5), torch.float32)
    turned = costs.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    settings = (4.0, 3)
    leaf = turned.clone().requires_grad_()
    path = RelaxedBellmanFord(*settings, backend="triton")(leaf)
    torch.testing.assert_close(path, RelaxedBellmanFord(*settings)(costs))
    # The gradient of a sum is one number, seen everywhere.
    path.sum().backward()
    expected = costs.clone().requires_grad_()
    RelaxedBellmanFord(*settings)(expected).sum().backward()
    torch.testing.assert_close(leaf.grad, expected.grad)
    half = costs.bfloat16().requires_grad_()
    path = RelaxedBellmanFord(*settings, backend="triton")(half)
    path.sum().backward()
    assert (path.dtype, half.grad.dtype) == (torch.float32, torch.bfloat16)
    none = costs[:0].requires_grad_()
    path = RelaxedBellmanFord(*settings, backend="triton")(none)
    path.sum().backward()
    assert path.shape == none.grad.shape == (0, 4, 5)


@pytest.mark.gpu
@pytest.mark.parametrize("loop", ["for", "while"])
def test_derivatives_of_both_orders_in_both_modes(loop):
    costs = make_costs("uniform", 1, (2, 3)).requires_grad_()
    algorithm = RelaxedBellmanFord(2.0, 4, loop, backend="triton")
    # In the interpreter along one random direction only.
    assert torch.autograd.gradcheck(algorithm, costs, check_forward_ad=True, fast_mode=INTERPRETED)
    assert torch.autograd.gradgradcheck(algorithm, costs, check_fwd_over_rev=True, fast_mode=INTERPRETED)


@pytest.mark.gpu
def test_a_batch_of_gradients_goes_through_the_plain_form():
    costs = make_costs("uniform", 1, (2, 3))
    by_triton, by_torch = (
        torch.autograd.functional.jacobian(RelaxedBellmanFord(2.0, 4, backend=backend), costs, vectorize=True)
        for backend in ("triton", "torch")
    )
    torch.testing.assert_close(by_triton, by_torch)


@pytest.fixture
def calls(monkeypatch):
    """The names of the operators that were called."""
    names = []
    for name in ("path_operator", "pullback_operator"):

        def counted(*arguments, name=name):
            names.append(name)
            return getattr(_dispatch, name)(*arguments)

        monkeypatch.setattr(_bellman_ford, name, counted)
    return names


@pytest.mark.gpu
def test_it_is_taken_on_request_and_steps_aside(calls):
    costs = make_costs("uniform", 2, (3, 3)).requires_grad_()
    algorithm = RelaxedBellmanFord(4.0, 4, backend="triton")
    path = algorithm(costs)
    (expected,) = torch.autograd.grad(path.sum(), costs)
    assert calls == ["path_operator", "pullback_operator"]
    calls.clear()
    torch.testing.assert_close(torch.func.grad(lambda c: algorithm(c).sum())(costs.detach()), expected)
    torch.testing.assert_close(torch.vmap(algorithm)(costs.detach()[None])[0], path.detach())
    compiled = torch.compile(algorithm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(costs).sum(), costs)[0], expected)
    RelaxedBellmanFord(4.0, 2, backend="torch")(costs)
    assert calls == []


@pytest.mark.gpu
def test_larger_grids_are_torchs(calls):
    costs = make_costs("uniform", 2, (32, 33)).requires_grad_()
    paths = [RelaxedBellmanFord(4.0, 3, backend=backend)(costs) for backend in ("triton", "torch")]
    assert torch.equal(*paths)
    paths[0].sum().backward()
    assert calls == []


@pytest.mark.gpu
def test_the_operators_keep_torchs_contracts():
    costs = make_costs("uniform", 2, (2, 3))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(costs).requires_grad_()
        path = RelaxedBellmanFord(4.0, 3, backend="triton")(fake)
        (gradient,) = torch.autograd.grad(path.sum(), fake)
        assert path.shape == gradient.shape == (2, 2, 3)
    settings = (4.0, 3, "while", "yager")
    torch.library.opcheck(_dispatch.path_operator, (costs, *settings))
    _, kept = _dispatch.path_operator(costs, *settings)
    torch.library.opcheck(_dispatch.pullback_operator, (kept, costs, *settings))


@pytest.mark.gpu
@on_cuda_alone
# After a capture the leaf's own node belongs to the stream of the capture; torch warns in the eager call.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@pytest.mark.parametrize(("loop", "conorm"), VARIANTS)
def test_nothing_waits_for_the_device_and_all_is_captured_in_a_graph(loop, conorm):
    costs = make_costs("uniform", 70, (12, 12), torch.float32).requires_grad_()
    label = make_costs("zero", 70, (12, 12), torch.float32)
    losses = [PathLoss(RelaxedBellmanFord(10.0, 18, loop, conorm, backend), "l2") for backend in ("triton", "torch")]

    def step(loss=losses[0]):
        value = loss(costs, label)
        return value, torch.autograd.grad(value.sum(), costs)[0]

    step()
    with no_synchronisation():
        step()
    graph, (value, gradient) = capture(step)
    with torch.no_grad():
        costs.copy_(path_maps.make_maps("uniform", 70, 12, 12, seed=8))
    graph.replay()
    eager_value, eager_gradient = step()
    assert torch.equal(value, eager_value)
    assert torch.equal(gradient, eager_gradient)
    expected_value, expected_gradient = step(losses[1])
    torch.testing.assert_close(value, expected_value, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.parametrize(("loop", "conorm"), VARIANTS)
def test_a_step_is_few_kernels_and_the_same_at_every_call(loop, conorm):
    costs = make_costs("uniform", 70, (12, 12), torch.float32)
    settings = (10.0, 18, loop, conorm)
    leaf, gradient = costs.clone().requires_grad_(), weights_like(costs)
    algorithm = RelaxedBellmanFord(*settings, backend="triton")
    names = kernels_of(lambda: torch.autograd.grad(algorithm(leaf), leaf, gradient))
    assert 2 <= len(names) < 10, names
    first, second = (path_and_gradient("triton", costs, *settings) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_errors_teach():
    with pytest.raises(ArgumentError, match="backend='fast' is not known"):
        RelaxedBellmanFord(backend="fast")


@pytest.mark.gpu
@pytest.mark.parametrize("neighbors", [4, 8])
@pytest.mark.parametrize("kind", path_maps.KINDS)
def test_exact_paths_have_the_same_bits_as_on_the_cpu(kind, neighbors):
    for height, width, start, goal in [
        (1, 1, 0, 0),
        (1, 9, 0, 8),
        (9, 1, 8, 0),
        (2, 2, 1, 2),
        (5, 7, 3, 3),
        (12, 12, 0, 143),
        (17, 10, 160, 35),
    ]:
        costs = path_maps.make_maps(kind, 4, height, width, seed=1)
        costs[-1, 0, 0] = float("nan")
        ends = (divmod(start, width), divmod(goal, width))
        expected = solve(costs, neighbors, *ends, strict=False)
        for dtype in (torch.float32, torch.float64):
            found = solver("triton", height * width)(costs.to(DEVICE, dtype), neighbors, start, goal)
            path, cost, unique, reachable = (tensor.cpu() for tensor in found)
            assert torch.equal(cost.view(torch.int64), expected.cost.view(torch.int64)), (height, width)
            assert torch.equal(path.to(costs.dtype), expected.path), (height, width)
            assert torch.equal(unique, expected.unique), (height, width)
            assert torch.equal(reachable, expected.reachable), (height, width)


@pytest.mark.gpu
def test_maps_that_do_not_lie_one_after_another():
    costs = path_maps.make_maps("uniform", 6, 8, 8, seed=2)
    expected = solve(costs[::2].mT)
    path, *_ = solver("triton", 64)(costs.to(DEVICE)[::2].mT, 8, 0, 63)
    assert torch.equal(path.cpu().to(costs.dtype), expected.path)


@pytest.mark.gpu
def test_the_kernel_follows_the_size():
    from newton_losses.paths import _torch_backend, _triton_shortest_path

    assert solver("triton", 1024) is _triton_shortest_path.solve
    assert solver("triton", 1025) is _torch_backend.solve
