"""SmoothedAlgorithm against closed forms, and its backward against its Jacobian."""

import itertools

import numpy
import pytest
import torch

from newton_losses import DerivativeError, ShapeError
from newton_losses.smoothing import Gaussian, Logistic, SmoothedAlgorithm
from smoothing.standard_errors import assert_unbiased

VARIANCE_REDUCTIONS = ("none", "value", "leave_one_out")
CHOICES = list(itertools.product(VARIANCE_REDUCTIONS, [False, True], [False, True]))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def ranks(scores):
    return scores.argsort(-1).argsort(-1)


@pytest.mark.parametrize(("reduction", "antithetic", "quasi"), CHOICES)
def test_smoothed_comparison_has_the_normal_distribution_as_output(reduction, antithetic, quasi):
    """The rank of the first of two scores is E[1(y₀+ε₀ > y₁+ε₁)] = Φ((y₀−y₁)/(√2·σ))."""
    scores, scale = torch.tensor([0.4, -0.1], dtype=torch.float64), 0.6
    algorithm = SmoothedAlgorithm(
        ranks,
        scale,
        8,
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(1),
    )
    y = scores.expand(20_000, 2)
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), 2**0.5 * scale)
    difference = scores[0] - scores[1]
    first, slope = normal.cdf(difference), normal.log_prob(difference).exp()
    assert_unbiased(algorithm(y), torch.stack([first, 1 - first]), 0.01, "output")
    matrix = torch.stack([torch.stack([slope, -slope]), torch.stack([-slope, slope])])
    assert_unbiased(algorithm.jacobian(y), matrix, 0.02, "jacobian")


@pytest.mark.parametrize("reduction", VARIANCE_REDUCTIONS)
@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (4,)), ((3,), ()), ((), (2,)), ((2, 2), (2, 3))])
def test_backward_is_the_jacobian_transposed(reduction, shapes):
    inputs, outputs = shapes
    size = torch.Size(inputs).numel()
    weight = torch.randn(size, torch.Size(outputs).numel(), dtype=torch.float64, generator=generator(2))

    def steps(y):
        return ((y.reshape(len(y), size) @ weight) > 0).reshape(len(y), *outputs)

    algorithm = SmoothedAlgorithm(
        steps, 0.7, 6, distribution=Logistic(), variance_reduction=reduction, generator=generator(3)
    )
    y = torch.randn(5, *inputs, dtype=torch.float64, generator=generator(4)).requires_grad_()
    result = algorithm(y)
    assert result.shape == (5, *outputs)
    outer = torch.randn(result.shape, dtype=torch.float64, generator=generator(5))
    result.backward(outer)
    algorithm.generator.manual_seed(3)
    matrix = algorithm.jacobian(y)
    assert matrix.shape == (5, *outputs, *inputs)
    expected = torch.einsum("nkm,nk->nm", matrix.reshape(5, -1, size), outer.reshape(5, -1))
    torch.testing.assert_close(y.grad.reshape(5, size), expected)


def test_the_jacobian_is_that_of_the_lemma():
    y = torch.randn(4, 3, dtype=torch.float64, generator=generator(6))
    algorithm = SmoothedAlgorithm(ranks, 0.5, 7, variance_reduction="value", generator=generator(7))
    matrix = algorithm.jacobian(y)
    noise = algorithm.sampler.draw(y, 0.5, Gaussian(), generator(7)).perturbation()
    expected = torch.zeros(4, 3, 3, dtype=torch.float64)
    for s in range(7):
        expected += torch.einsum("nk,nm->nkm", (ranks(y + noise[s]) - ranks(y)).double(), noise[s]) / 0.25 / 7
    torch.testing.assert_close(matrix, expected)


def test_it_composes_with_a_differentiable_loss_and_the_empirical_fisher():
    """Per-sample gradients of a loss of its output are the chain rule's, so their Fisher is too."""
    algorithm = SmoothedAlgorithm(ranks, 0.5, 30, generator=generator(8))
    y = torch.randn(6, 3, dtype=torch.float64, generator=generator(9)).requires_grad_()
    wanted = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    output = algorithm(y)
    (gradient,) = torch.autograd.grad((output - wanted).square().sum(), y)
    algorithm.generator.manual_seed(8)
    chain = torch.einsum("nkm,nk->nm", algorithm.jacobian(y), 2 * (output - wanted).detach())
    torch.testing.assert_close(gradient, chain)


def test_the_scale_of_a_backward_is_that_of_its_forward():
    y = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    algorithm = SmoothedAlgorithm(lambda y: y > 0, 0.5, 4, generator=generator(12))
    (expected,) = torch.autograd.grad(algorithm(y).sum(), y)
    algorithm.generator.manual_seed(12)
    output = algorithm(y)
    algorithm.scale = 0.1
    output.sum().backward()
    torch.testing.assert_close(y.grad, expected)


def test_the_backward_stores_no_jacobian():
    """300 inputs and outputs, 40 samples: its Jacobians are 3.6 million numbers, its draws 48,000."""
    algorithm = SmoothedAlgorithm(lambda y: y > 0, 0.5, 4, generator=generator(10))
    y = torch.zeros(40, 300, requires_grad=True)
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        algorithm(y).sum()
    assert max(sizes) <= 5 * 40 * 300


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("hessian", [torch.autograd.functional.hessian, lambda f, y: torch.func.hessian(f)(y)])
def test_a_second_derivative_is_refused_with_the_reason(hessian):
    algorithm = SmoothedAlgorithm(ranks, 0.5, 4, generator=generator(11))
    with pytest.raises(DerivativeError, match=r"k·m² entries.*curvature='fisher'"):
        hessian(lambda y: algorithm(y).square().sum(), torch.zeros(2, 3, dtype=torch.float64))


def test_wrong_outputs_teach_in_both_ways_of_asking():
    algorithm = SmoothedAlgorithm(ranks)
    for ask in (algorithm, algorithm.jacobian):
        with pytest.raises(ShapeError, match="batch of real outputs"):
            ask(torch.tensor([[1, 2]]))


def test_a_lost_batch_dimension_teaches():
    with pytest.raises(ShapeError, match=r"fn returned shape \(3,\) for inputs of shape \(20, 3\)"):
        SmoothedAlgorithm(lambda y: y.sum(0))(torch.zeros(2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("quasi", [False, True])
def test_a_training_step_is_captured_in_a_cuda_graph(quasi):
    """No host synchronisation, and fresh noise at every replay from the registered generator."""
    noise = torch.Generator(device="cuda").manual_seed(0)
    algorithm = SmoothedAlgorithm(ranks, 0.5, 8, quasi=quasi, generator=noise)
    y = torch.randn(64, 5, device="cuda", requires_grad=True)

    def step():
        (gradient,) = torch.autograd.grad(algorithm(y).square().sum(), y)
        return gradient

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(noise)
    with torch.cuda.graph(graph):
        gradient = step()
    graph.replay()
    first = gradient.clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, gradient)


@pytest.mark.parametrize("returned", [lambda found: found, torch.from_numpy], ids=["array", "tensor of an array"])
def test_a_solver_may_write_into_its_last_solution(returned):
    """NumPy's memory has no count of changes, which would tell."""
    kept = {}

    def ranks(y):
        found = kept.setdefault(len(y), numpy.empty(y.shape, numpy.float32))
        numpy.copyto(found, y.numpy().argsort(-1).argsort(-1))
        return returned(found)

    gradients = []
    for fn in (ranks, lambda y: torch.as_tensor(ranks(y)).clone()):
        algorithm = SmoothedAlgorithm(fn, 0.5, 50, generator=torch.Generator().manual_seed(0))
        y = torch.tensor([[0.3, 0.1, 0.2]], requires_grad=True)
        found = algorithm(y)
        algorithm(torch.tensor([[-3.0, 1.0, -7.0]]))
        (found - torch.tensor([[0.0, 1.0, 2.0]])).square().sum().backward()
        gradients.append(y.grad)
    assert torch.equal(*gradients)


def test_a_list_of_arrays_is_as_good_as_one_array():
    """And as fast: of its own accord, torch warns that it is slow."""
    y = torch.tensor([[0.3, 0.1, 0.2], [1.0, 2.0, -1.0]])
    found = [
        SmoothedAlgorithm(fn, 0.5, 6, generator=torch.Generator().manual_seed(0)).jacobian(y)
        for fn in (lambda y: y.argsort(-1), lambda y: list(y.argsort(-1).numpy()))
    ]
    assert torch.equal(*found)
