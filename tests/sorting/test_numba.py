"""The compiled kernel of the networks: the numbers of the torch path, and out of the way where it cannot run."""

import pytest
import torch
from sorting_cases import DISTRIBUTIONS, numbers, scores_and_values
from test_stability import adversarial, sorting_fuzz
from torch._subclasses import FakeTensorMode

from newton_losses.errors import ArgumentError
from newton_losses.sorting import SortingLoss, SortingNetwork, _network_derivatives, _network_operators

pytest.importorskip("numba")


def pair(distribution="logistic", steepness=2.0, ties="share", network="odd_even"):
    """The same loss by both back ends."""
    return tuple(
        SortingLoss(SortingNetwork(None, network, distribution, steepness, backend=backend), ties=ties)
        for backend in ("numba", "torch")
    )


def assert_same(first, second):
    torch.testing.assert_close(numbers(first), numbers(second))


@pytest.mark.parametrize("ties", ["share", "mask"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_equals_the_torch_path(distribution, n, ties):
    scores, values = scores_and_values(5, n, seed=n)
    scores[1] = 0.3
    values[2] = values[2] // 2
    compiled, plain = pair(distribution, 3.0, ties)
    assert_same(*(loss.expand(scores, values, curvature="hessian") for loss in (compiled, plain)))
    torch.testing.assert_close(compiled(scores, values), plain(scores, values))
    leaf = scores.requires_grad_()
    torch.testing.assert_close(
        *(torch.autograd.grad(loss(leaf, values).square().sum(), leaf) for loss in (compiled, plain))
    )


# The tail of "gaussian" is quadratic: beyond 0.1 its logarithms are −10¹⁴ and below, and differences of them are lost.
@pytest.mark.parametrize(
    ("distribution", "steepness"),
    [
        (name, steepness)
        for name in DISTRIBUTIONS
        for steepness in (0.1, 10.0, 1000.0)
        if name != "gaussian" or steepness < 1
    ],
)
def test_equals_the_torch_path_far_beyond_the_range_of_floats(distribution, steepness):
    """Weights go down to e^(−10⁹) here, and as in the torch path their logarithms are right to 10⁻⁷."""
    scores, values = (tensor.double() for tensor in adversarial(6))
    compiled, plain = pair(distribution, steepness)
    for row in range(len(scores)):
        one = slice(row, row + 1)
        found, expected = (loss.expand(scores[one], values[one], curvature="hessian") for loss in (compiled, plain))
        # Large terms may cancel, once for each derivative, and the torch path cuts odds at e⁻⁸⁰: hence these floors.
        terms = (sorting_fuzz.CANCELLED * expected.value.clamp(max=1)).clamp(min=1e-28)
        for name, order in (("value", 0), ("gradient", 1), ("curvature", 2)):
            floor = terms * sorting_fuzz.sharpness(plain.relaxation, scores[one]) ** order
            result, right = numbers(found)[name], numbers(expected)[name]
            assert ((result - right).norm() <= 1e-6 * torch.maximum(right.norm(), floor)).all(), (name, row)


def test_bitonic_networks_and_float32():
    scores, values = scores_and_values(6, 16, dtype=torch.float32)
    found, expected = (loss.expand(scores, values, curvature="hessian") for loss in pair(network="bitonic"))
    assert found.value.dtype == found.gradient.dtype == found.curvature.dense().dtype == torch.float32
    assert_same(found, expected)


def test_a_sample_that_is_not_a_number_stays_alone():
    scores, values = scores_and_values(4, 5)
    compiled, _ = pair()
    expected = compiled(scores, values)
    scores[2, 1], scores[3, 0] = torch.nan, torch.inf
    leaf = scores.requires_grad_()
    value = compiled(leaf, values)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(value[:2], expected[:2])
    assert value[2:].isnan().all()
    assert gradient[:2].isfinite().all()
    assert gradient[2].isnan().any()


def test_no_samples():
    found = pair()[0].expand(torch.zeros(0, 3), torch.zeros(0, 3), curvature="hessian")
    assert found.gradient.shape == (0, 3)
    assert not found.curvature.dense().any()


def test_threads_change_nothing(monkeypatch):
    scores, values = scores_and_values(11, 4)
    compiled, _ = pair()
    expected = compiled.expand(scores, values, curvature="hessian")
    monkeypatch.setattr(_network_operators, "CELLS_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert_same(compiled.expand(scores, values, curvature="hessian"), expected)


def test_it_is_taken_by_itself_and_steps_aside(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return _network_operators.losses_by_kernel(*arguments)

    monkeypatch.setattr(_network_derivatives, "losses_by_kernel", counted)
    scores, values = scores_and_values(4, 3)
    loss = SortingLoss("logistic")
    expected = loss.expand(scores, values, curvature=None).gradient
    assert len(calls) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss(scores.float().requires_grad_(), values).sum().backward()
    loss(scores, values)
    assert len(calls) == 3
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(scores, torch.ones_like(scores))
        tangent = torch.autograd.forward_ad.unpack_dual(loss(dual, values)).tangent
    torch.testing.assert_close(tangent, expected.sum(-1), atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(scores, values), expected)
    compiled = torch.compile(lambda s: loss.expand(s, values, curvature=None).gradient, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), expected)
    monkeypatch.setattr(_network_operators, "obstacle", lambda package: f"is not installed: pip install {package}")
    torch.testing.assert_close(loss.expand(scores, values, curvature=None).gradient, expected)
    assert len(calls) == 3


def test_the_operator_keeps_torchs_contracts():
    with FakeTensorMode():
        found = pair()[0].expand(torch.zeros(7, 4), torch.zeros(7, 4), curvature="hessian")
        assert (found.value.shape, found.gradient.shape, found.curvature.dense().shape) == ((7,), (7, 4), (4, 4))
    partners = torch.tensor([[1, 0], [0, 1]])
    target = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)
    logs = torch.full((2, 2, 2, 3), -0.7, dtype=torch.float64)
    slopes = torch.randn(3, 2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nothing = slopes.new_empty(0, 0, 0, 0)
    for derivatives in ((slopes, slopes), (slopes, nothing), (nothing, nothing)):
        torch.library.opcheck(
            _network_operators.network_operator, (partners, logs, *derivatives, target, target / 4, "numba")
        )


def test_errors_teach(monkeypatch):
    with pytest.raises(ArgumentError, match="'auto', 'numba', 'triton', 'torch'"):
        SortingNetwork(4, backend="cuda")
    monkeypatch.setattr(_network_operators, "obstacle", lambda package: f"is not installed: pip install {package}")
    with pytest.raises(ArgumentError, match="pip install"):
        SortingNetwork(4, backend="numba")


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_weights_beyond_64_bit_integers_keep_their_order(backend):
    """Compiled, math.floor is a 64-bit integer: it wraps round, and a wrong order cost nothing."""
    loss = SortingLoss(SortingNetwork(2, backend=backend))
    values = torch.tensor([[0.0, 1.0]])
    wrong, right = (loss(torch.tensor([[x, -x]], dtype=torch.float64), values).item() for x in (4e25, -4e25))
    assert wrong == pytest.approx(8e26)
    assert right == 0
    assert loss(torch.tensor([[torch.inf, 0.85]]), values).isnan()


def test_the_loss_is_a_number_however_steep_the_network_is():
    """The logarithm of a comparator's weight is −∞ here, and counts as −10³⁰."""
    loss, _ = pair("gaussian", 1e200)
    assert loss(torch.tensor([[-1.0, 0.0, 1.0]], dtype=torch.float64), torch.tensor([[2, 1, 0]])).isfinite().all()
