"""The Triton back end of the networks: the numbers of the torch path, and out of the way where it cannot run.

The tests marked `gpu` run on CUDA, and, but for those that need a device, in Triton's interpreter on the CPU too:
`test_in_the_interpreter` starts them so in a process of their own, because Triton decides when it is imported.
"""

import pytest
import torch
from sorting_cases import DISTRIBUTIONS, numbers, scores_and_values
from test_stability import adversarial, sorting_fuzz
from torch._subclasses import FakeTensorMode

from newton_losses import NewtonLoss
from newton_losses.errors import ArgumentError
from newton_losses.sorting import SortingLoss, SortingNetwork, _network_derivatives, _network_operators
from on_cuda import no_synchronisation
from triton_interpreter import DEVICE, on_cuda_alone, run_interpreted


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


def pair(distribution="logistic", steepness=2.0, ties="share", network="odd_even"):
    """The same loss by both back ends."""
    return tuple(
        SortingLoss(SortingNetwork(None, network, distribution, steepness, backend=backend), ties=ties)
        for backend in ("triton", "torch")
    )


def assert_same(first, second):
    torch.testing.assert_close(numbers(first), numbers(second))


def expansions(losses, scores, values):
    scores, values = scores.to(DEVICE), values.to(DEVICE)
    return tuple(loss.expand(scores, values, curvature="hessian") for loss in losses)


LARGE = pytest.mark.slow  # in the interpreter

CASES = [
    *((name, "odd_even", 3, 3) for name in DISTRIBUTIONS),
    *(("cauchy", "odd_even", n, count) for n, count in [(1, 2), (2, 7), (5, 1)]),
    ("gaussian", "bitonic", 4, 1),
    *(pytest.param(name, "odd_even", n, 7, marks=LARGE) for name in DISTRIBUTIONS for n in (2, 5, 8, 10, 15, 16, 33)),
    *(pytest.param(name, "bitonic", n, 7, marks=LARGE) for name in DISTRIBUTIONS for n in (8, 16, 64)),
    pytest.param("logistic", "odd_even", 10, 1000, marks=LARGE),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("distribution", "network", "n", "count"), CASES)
def test_equals_the_torch_path(distribution, network, n, count):
    scores, values = scores_and_values(count, n, seed=n)
    if count > 2:
        scores[1] = 0.3
        values[2] = values[2] // 2
    losses = pair(distribution, 3.0, "mask" if count == 7 else "share", network)
    assert_same(*expansions(losses, scores, values))
    scores, values = scores.to(DEVICE), values.to(DEVICE)
    torch.testing.assert_close(*(loss(scores, values) for loss in losses))


@pytest.mark.gpu
@pytest.mark.parametrize("distribution", ["cauchy", *(pytest.param(n, marks=LARGE) for n in DISTRIBUTIONS)])
def test_masked_lists_equal_the_torch_path(distribution):
    """From a full list down to an empty one, with the items that exist anywhere in it."""
    scores, values = scores_and_values(5, 4, seed=3)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    scores[~mask] = torch.nan
    scores, values, mask = (x.to(DEVICE) for x in (scores, values, mask))
    losses = pair(distribution, 3.0)
    for curvature in ("hessian", "fisher"):
        found, expected = (loss.expand(scores, values, mask, curvature=curvature, exchangeable=True) for loss in losses)
        torch.testing.assert_close((found.value, found.gradient), (expected.value, expected.gradient))
        torch.testing.assert_close(found.curvature.among, expected.curvature.among)
        assert (found.gradient[~mask] == 0).all()
    torch.testing.assert_close(*(loss(scores, values, mask) for loss in losses))
    gradients = []
    for loss in (*losses, *map(NewtonLoss, losses)):
        leaf = scores.clone().requires_grad_()
        loss(leaf, values, mask=mask).mean().backward()
        assert (leaf.grad[~mask] == 0).all()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[::2], gradients[1::2])


@pytest.mark.gpu
def test_float32_and_gradients_by_backward():
    scores, values = scores_and_values(3, 4, dtype=torch.float32)
    losses = pair(network="bitonic")
    found, expected = expansions(losses, scores, values)
    assert found.value.dtype == found.gradient.dtype == found.curvature.dense().dtype == torch.float32
    assert_same(found, expected)
    leaf, values = scores.to(DEVICE).requires_grad_(), values.to(DEVICE)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss(leaf, values).square().sum(), leaf) for loss in losses),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_moves_on_the_wires_equal_the_torch_paths(distribution):
    """The distributions are written twice: here they meet, from nearly equal wires to where light tails end.

    A first layer moves wire 0 from 0 by F(−u) d, and a second compares it with a wire at 0: all digits are seen.
    """
    sizes = torch.logspace(-6, 4, 60, dtype=torch.float64, device=DEVICE)
    differences = torch.cat((sizes, -sizes))
    values = torch.stack((torch.zeros_like(differences), differences, torch.zeros_like(differences)))
    partners = torch.tensor([[1, 0, 2], [2, 1, 0]], device=DEVICE)
    signs = torch.tensor([[1.0, -1.0, 1.0]] * 2, dtype=torch.float64, device=DEVICE).unsqueeze(-1)
    law = SortingNetwork(None, distribution=distribution)._law
    compared = _network_derivatives.Comparisons(partners, [1, 2], signs, None, law, 2.0)
    found, expected = (_network_derivatives._differences(compared, values, kernel) for kernel in ("triton", None))
    assert torch.equal(found[0], expected[0])
    # Of an exponent of −700 rounding leaves 10⁻¹³; below it numbers lose digits one by one.
    torch.testing.assert_close(found[1, 0], expected[1, 0], rtol=3e-13, atol=1e-305)


# The tail of "gaussian" is quadratic: beyond 0.1 its logarithms are −10¹⁴ and below, and differences of them are lost.
FAR = [
    ("logistic", 1000.0, 2),
    *(
        pytest.param(name, steepness, 6, marks=LARGE)
        for name in DISTRIBUTIONS
        for steepness in (0.1, 10.0, 1000.0)
        if name != "gaussian" or steepness < 1
    ),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("distribution", "steepness", "n"), FAR)
def test_equals_the_torch_path_far_beyond_the_range_of_floats(distribution, steepness, n):
    """Sample by sample, so that no Hessian hides behind a larger one; the floors are those of the compiled kernel."""
    scores, values = (tensor.double() for tensor in adversarial(n))
    losses = pair(distribution, steepness)
    for row in range(len(scores)):
        one = slice(row, row + 1)
        found, expected = expansions(losses, scores[one], values[one])
        terms = (sorting_fuzz.CANCELLED * expected.value.clamp(max=1)).clamp(min=1e-28)
        for name, order in (("value", 0), ("gradient", 1), ("curvature", 2)):
            result, right = numbers(found)[name], numbers(expected)[name]
            assert result.isfinite().all(), (name, row)
            sharpness = sorting_fuzz.sharpness(losses[1].relaxation, scores[one]).to(DEVICE)
            size = torch.maximum(right.norm(), terms * sharpness**order)
            assert ((result - right).norm() <= 1e-6 * size).all(), (name, row)


@pytest.mark.gpu
def test_a_batch_in_parts_is_the_same(monkeypatch):
    from newton_losses.sorting import _network_triton

    scores, values = scores_and_values(5, 2)
    losses = pair()
    expected, _ = expansions(losses, scores, values)
    monkeypatch.setattr(_network_triton, "SCRATCH", 40_000)
    found, by_torch = expansions(losses, scores, values)
    for name in ("value", "gradient", "curvature"):
        assert torch.equal(numbers(found)[name], numbers(expected)[name])
    assert_same(found, by_torch)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_a_sample_that_is_not_a_number_stays_alone():
    scores, values = (tensor.to(DEVICE) for tensor in scores_and_values(4, 3))
    loss, _ = pair()
    expected = loss(scores, values)
    scores[2, 1], scores[3, 0] = torch.nan, torch.inf
    leaf = scores.requires_grad_()
    value = loss(leaf, values)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(value[:2], expected[:2])
    assert value[2:].isnan().all()
    assert gradient[:2].isfinite().all()
    assert gradient[2].isnan().any()


@pytest.mark.gpu
def test_no_samples():
    found = pair()[0].expand(*torch.zeros(2, 0, 3, device=DEVICE), curvature="hessian")
    assert found.gradient.shape == (0, 3)
    assert not found.curvature.dense().any()


@pytest.mark.gpu
def test_it_is_taken_on_request_and_steps_aside(monkeypatch):
    kernels = []

    def counted(*arguments):
        kernels.append(arguments[-1])
        return _network_operators.losses_by_kernel(*arguments)

    monkeypatch.setattr(_network_derivatives, "losses_by_kernel", counted)
    scores, values = (tensor.to(DEVICE) for tensor in scores_and_values(3, 3))
    loss, plain = pair()
    expected = loss.expand(scores, values, curvature=None).gradient
    loss(scores, values)
    assert kernels == ["triton", "triton"]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(scores, values), expected)
    compiled = torch.compile(lambda s: loss.expand(s, values, curvature=None).gradient, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), expected)
    loss(torch.zeros(2, 65, device=DEVICE), torch.zeros(2, 65, device=DEVICE))
    plain.expand(scores, values, curvature=None)
    assert kernels[2:] == []


@pytest.mark.gpu
def test_the_operators_keep_torchs_contracts():
    with FakeTensorMode():
        found = pair()[0].expand(*torch.zeros(2, 7, 4, device=DEVICE), curvature="hessian")
        assert (found.value.shape, found.gradient.shape, found.curvature.dense().shape) == ((7,), (7, 4), (4, 4))
    partners = torch.tensor([[1, 0], [0, 1]], device=DEVICE)
    target = torch.eye(2, dtype=torch.float64, device=DEVICE).expand(2, 2, 2)
    logs = torch.full((2, 2, 2, 2), -0.7, dtype=torch.float64, device=DEVICE)
    slopes = torch.randn(3, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    torch.library.opcheck(
        _network_operators.network_operator, (partners, logs, slopes, slopes, target, target / 4, "triton")
    )
    torch.library.opcheck(_network_operators.differences_operator, (target[0], partners, target[0], "cauchy"))


@pytest.mark.gpu
@on_cuda_alone
def test_nothing_waits_for_the_device_and_all_is_captured_in_a_graph():
    scores, values = (tensor.to(DEVICE) for tensor in scores_and_values(20, 5))
    loss, plain = (SortingLoss(SortingNetwork(5, backend=backend)).to(DEVICE) for backend in ("triton", "torch"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss.expand(scores, values, curvature="hessian")
    torch.cuda.current_stream().wait_stream(stream)
    with no_synchronisation():
        loss.expand(scores, values, curvature="hessian")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = loss.expand(scores, values, curvature="hessian")
    scores.copy_(scores_and_values(20, 5, seed=1)[0])
    graph.replay()
    assert_same(found, plain.expand(scores, values, curvature="hessian"))


@pytest.mark.gpu
@on_cuda_alone
def test_the_hessian_is_the_same_at_every_call():
    scores, values = (tensor.to(DEVICE) for tensor in scores_and_values(1000, 10))
    loss, _ = pair()
    first, second = (loss.expand(scores, values, curvature="hessian").curvature.dense() for _ in range(2))
    assert torch.equal(first, second)


def test_without_a_device_of_its_own_it_steps_aside(monkeypatch):
    monkeypatch.setattr(_network_operators, "obstacle", lambda package: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert _network_operators.chosen_kernel("triton", torch.zeros(2, 3)) is None
    assert _network_operators.chosen_kernel("triton", torch.zeros(2, 3, device="meta")) is None


@pytest.mark.gpu
@on_cuda_alone
def test_it_is_the_choice_on_cuda():
    assert _network_operators.chosen_kernel("auto", torch.zeros(2, 3, device=DEVICE)) == "triton"
    assert _network_operators.chosen_kernel("auto", torch.zeros(2, 65, device=DEVICE)) is None


def test_errors_teach(monkeypatch):
    monkeypatch.setattr(_network_operators, "obstacle", lambda package: f"is not installed: pip install {package}")
    with pytest.raises(ArgumentError, match="pip install triton"):
        SortingNetwork(4, backend="triton")
