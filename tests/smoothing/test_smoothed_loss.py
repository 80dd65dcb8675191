"""SmoothedLoss: its book-keeping against brute force, what it refuses, and what it says then."""

import itertools

import pytest
import torch

from newton_losses import ArgumentError, DerivativeError, NewtonLoss, ShapeError
from newton_losses.curvature import Dense, Expandable, LowRank
from newton_losses.perturbed import FenchelYoungLoss, Perturbed
from newton_losses.smoothing import (
    Cauchy,
    Gaussian,
    Gumbel,
    Laplace,
    Logistic,
    SmoothedAlgorithm,
    SmoothedLoss,
    StudentT,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def both_positive(y):
    return (y > 0).all(-1)


@pytest.mark.parametrize("baseline", ["value", "leave_one_out", "none"])
def test_the_hessian_is_the_mean_of_the_samples_hessians(baseline):
    """One matrix product against the lemma written out for every sample and draw."""
    y = torch.randn(6, 2, 2, dtype=torch.float64, generator=generator(5))
    target = torch.randn(6, 4, dtype=torch.float64, generator=generator(6))

    def cost(inputs, target):
        return ((inputs.flatten(1) > 0) * target).sum(-1) ** 2

    loss = SmoothedLoss(cost, 0.7, 5, distribution=Logistic(), variance_reduction=baseline, generator=generator(7))
    expansion = loss.expand(y, target)
    noise = loss.sampler.draw(y.flatten(1), 0.7, Logistic(), generator(7))
    gradient, hessian = torch.zeros(6, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)

    def value(i, s):
        return cost((y[i] + 0.7 * noise.standard[s, i].reshape(2, 2))[None], target[i, None]).squeeze()

    for i, s in itertools.product(range(6), range(5)):
        z = noise.standard[s, i]
        first, second = torch.tanh(z / 2) / 0.7, (1 - torch.tanh(z / 2) ** 2) / 2 / 0.49
        weight = (
            value(i, s)
            - {
                "value": cost(y[i, None], target[i, None]).squeeze(),
                "leave_one_out": sum(value(i, other) for other in range(5) if other != s) / 4,
                "none": 0.0,
            }[baseline]
        )
        gradient[i] += weight * first / 5
        hessian += weight * (torch.outer(first, first) - torch.diag(second)) / 30
    torch.testing.assert_close(expansion.gradient, gradient)
    torch.testing.assert_close(expansion.curvature.dense(), hessian)
    assert torch.equal(expansion.curvature.dense(), expansion.curvature.dense().mT)


@pytest.mark.parametrize("quasi", [False, True])
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("baseline", ["value", "leave_one_out"])
def test_a_baseline_removes_a_constant_altogether(baseline, antithetic, quasi):
    settings = {"variance_reduction": baseline, "antithetic": antithetic, "quasi": quasi}
    expansion = SmoothedLoss(lambda y: torch.full((len(y),), 7), 0.5, 8, **settings).expand(torch.zeros(3, 2))
    assert not expansion.gradient.any()
    assert not expansion.curvature.dense().any()
    assert (expansion.value == 7).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@pytest.mark.parametrize("baseline", ["value", "leave_one_out"])
def test_a_baseline_removes_a_constant_that_float32_has_no_digits_for(baseline, dtype):
    """As of a solver that counts in cents: rounded to float32, costs of two billion are 128 apart."""

    def estimate(constant):
        def cents(y):
            return (100 * y.round()).to(dtype).abs().sum(1) + constant

        loss = SmoothedLoss(cents, 0.5, 8, variance_reduction=baseline, generator=generator(50))
        return loss.expand(torch.linspace(-2, 2, 12).reshape(4, 3))

    expected, found = estimate(0), estimate(2_000_000_000)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.curvature.dense(), expected.curvature.dense())
    assert found.value.dtype == found.gradient.dtype == torch.float32


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3)])
def test_backward_gives_the_gradient_of_the_expansion(shape):
    y = torch.randn(shape, dtype=torch.float64, generator=generator(8)).requires_grad_()
    loss = SmoothedLoss(lambda y: (y.reshape(len(y), -1) > 0).sum(-1), 0.5, 6, generator=generator(9))
    value = loss(y)
    (value * torch.arange(7)).sum().backward()
    loss.generator.manual_seed(9)
    expansion = loss.expand(y, curvature=None)
    torch.testing.assert_close(value.detach(), expansion.value)
    torch.testing.assert_close(y.grad.reshape(7, -1), expansion.gradient * torch.arange(7)[:, None])
    assert value.shape == (7,)
    assert expansion.curvature is None


@pytest.mark.parametrize(("batch", "form"), [(9, Dense), (2, LowRank)])
def test_the_empirical_fisher(batch, form):
    y = torch.randn(batch, 4, dtype=torch.float64, generator=generator(10))
    loss = SmoothedLoss(lambda y: y.argmax(-1), 0.5, 20, distribution=Laplace(), generator=generator(11))
    expansion = loss.expand(y, curvature="fisher")
    assert isinstance(expansion.curvature, form)
    torch.testing.assert_close(expansion.curvature.dense(), expansion.gradient.mT @ expansion.gradient / batch)


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_a_bad_sample_is_left_out_of_the_curvature_and_nothing_else(curvature):
    y = torch.randn(6, 3, dtype=torch.float64, generator=generator(12))
    scale = torch.ones(6, dtype=torch.float64)
    scale[2], scale[4] = torch.nan, torch.inf

    def cost(inputs, scale):
        return (inputs > 0).sum(-1) * scale

    loss = SmoothedLoss(cost, 0.5, 6, generator=generator(13))
    expansion = loss.expand(y, scale, curvature=curvature)
    good = torch.tensor([0, 1, 3, 5])
    assert expansion.value.isnan()[2]
    assert expansion.gradient[good].isfinite().all()
    assert expansion.curvature.dense().isfinite().all()
    loss.generator.manual_seed(13)
    # The same noise, and the bad samples at a loss that is 0 everywhere: they add nothing but to the count.
    silent = loss.expand(y, torch.nan_to_num(scale, nan=0.0, posinf=0.0), curvature=curvature)
    found, wanted = (one.curvature.dense() for one in (expansion, silent))
    torch.testing.assert_close(found, wanted * 6 / 4)


@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_a_gradient_that_overflows_in_one_output_leaves_its_sample_out(curvature):
    """The value is finite, and so is the other output's derivative: neither makes the sample a good one."""
    noise = torch.tensor([1.0, -1.0, 0.5])[:, None, None] * torch.tensor([1.0, 0.0])

    class Fixed(Gaussian):
        def sample(self, uniform):
            return noise.expand(3, uniform.shape[1], 2)

    loss = SmoothedLoss(lambda y, height: (y[:, 0] > 0) * height, 1e-10, 3, distribution=Fixed())
    both = loss.expand(torch.zeros(2, 2), torch.tensor([1.0, 1e30]), curvature=curvature)
    assert both.value.isfinite().all()
    assert both.gradient.isfinite().tolist() == [[True, True], [False, True]]
    alone = loss.expand(torch.zeros(1, 2), torch.ones(1), curvature=curvature)
    torch.testing.assert_close(both.curvature.dense(), alone.curvature.dense())


def test_it_is_expandable_and_its_newton_step_descends():
    """What the Newton loss does with an expansion: the damped step lowers the smoothed loss."""
    target = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)

    def misses(y):
        return ((y - target).abs() > 0.3).sum(-1)

    loss = SmoothedLoss(misses, 0.5, 400, antithetic=True, generator=generator(14))
    assert isinstance(loss, Expandable)
    y = target + 0.3 * torch.randn(32, 3, dtype=torch.float64, generator=generator(15))
    expansion = loss.expand(y, curvature="hessian")
    damped = expansion.curvature.dense() + 1.0 * torch.eye(3, dtype=torch.float64)
    step = torch.linalg.solve(damped, expansion.gradient.mT).mT
    assert loss(y - step).mean() < loss(y).mean() - 0.1


def test_targets_arrays_and_integers():
    labels = torch.tensor([0, 2, 1])
    y = torch.zeros(3, 3, dtype=torch.float64)
    seen = []

    def numpy_loss(inputs, labels, margin):
        seen.append((tuple(inputs.shape), tuple(labels.shape), margin))
        assert torch.equal(labels[:3], labels[3:6])
        return (inputs.numpy().argmax(-1) != labels.numpy()).astype("int32")

    loss = SmoothedLoss(numpy_loss, 0.5, 4, generator=generator(16))
    value = loss(y, labels, 0.25)
    assert seen == [((12, 3), (12,), 0.25)]  # one call for four draws of three samples
    SmoothedLoss(numpy_loss, 0.5, 4, variance_reduction="value")(y, labels, 0.25)
    assert seen[1] == ((15, 3), (15,), 0.25)  # and for y itself
    loss(y, labels, torch.tensor(0.25))
    assert seen[2] == seen[0]  # a scalar tensor belongs to all samples, like a number
    assert value.dtype == torch.float64


def test_at_least_float32_whatever_the_autocast():
    loss = SmoothedLoss(lambda y: (y > 0).sum(-1), 0.5, 4, generator=generator(17))
    y = torch.randn(5, 3, generator=generator(18)).bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(y)
        loss.generator.manual_seed(17)
        expansion = loss.expand(y)
    loss.generator.manual_seed(17)
    plain = loss.expand(y.float())
    assert value.dtype == expansion.gradient.dtype == torch.float32
    torch.testing.assert_close(expansion.curvature.dense(), plain.curvature.dense(), rtol=0, atol=0)
    value.sum().backward()
    assert y.grad.dtype == torch.bfloat16


def test_float32_agrees_with_float64():
    y = torch.randn(16, 4, dtype=torch.float64, generator=generator(19))
    uniform = torch.rand(8, 16, 4, generator=generator(20))

    class Fixed(Gaussian):
        def sample(self, unused):
            return super().sample(uniform.to(unused.dtype))

    loss = SmoothedLoss(lambda y: torch.sin(3 * y).sum(-1), 0.5, 8, distribution=Fixed())
    double, single = loss.expand(y), loss.expand(y.float())
    torch.testing.assert_close(single.gradient, double.gradient.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.curvature.dense(), double.curvature.dense().float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda f, y: torch.autograd.functional.hessian(lambda y: f(y).sum(), y),
        lambda f, y: torch.func.hessian(lambda y: f(y).sum())(y),
        lambda f, y: torch.func.jacrev(torch.func.grad(lambda y: f(y).sum()))(y),
        lambda f, y: torch.func.jvp(f, (y,), (y,)),
        lambda f, y: torch.autograd.functional.hessian(lambda y: (f(y) + y.square().sum(-1)).sum(), y),
    ],
    ids=["reverse", "functional", "reverse over reverse", "forward", "beside another loss"],
)
# Forward mode makes torch itself script its decompositions, with a warning.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_second_derivative_is_refused_not_wrong(differentiate):
    loss = SmoothedLoss(lambda y: (y > 0).sum(-1), 0.5, 4, generator=generator(21))
    with pytest.raises(DerivativeError, match=r"SmoothedLoss.expand\(y, ..., curvature='hessian'\)"):
        differentiate(loss, torch.zeros(2, 3, dtype=torch.float64))


def test_first_derivatives_by_torch_func():
    loss = SmoothedLoss(lambda y: (y > 0).sum(-1), 0.5, 4, generator=generator(22))
    y = torch.zeros(2, 3, dtype=torch.float64)
    gradient = torch.func.grad(lambda y: loss(y).sum())(y)
    loss.generator.manual_seed(22)
    torch.testing.assert_close(gradient, loss.expand(y, curvature=None).gradient)


def test_no_hessian_from_values_under_laplace_noise():
    loss = SmoothedLoss(both_positive, 0.8, 4, distribution=Laplace())
    with pytest.raises(DerivativeError, match=r"under Laplace\(\)"):
        loss.expand(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda y: y.sum(), r"returned shape \(\) for inputs of shape \(12, 3\).*reduce over the batch"),
        (lambda y: y.sum(-1)[:3], r"returned shape \(3,\).*here \(12,\)"),
        (lambda y: y, r"returned shape \(12, 3\).*reduce its last 1 dimension"),
    ],
)
def test_a_wrong_shape_teaches(fn, says):
    with pytest.raises(ShapeError, match=says):
        SmoothedLoss(fn, num_samples=4)(torch.zeros(3, 3))


def test_the_defaults_are_those_that_the_docs_name():
    settings = SmoothedLoss(both_positive).extra_repr()
    assert settings.startswith("scale=0.1, num_samples=10, distribution=Gaussian()")
    assert "antithetic=False, quasi=False" in settings


def test_wrong_arguments_teach():
    y = torch.zeros(3, 3)
    with pytest.raises(ArgumentError, match="scale=-1 is not a positive finite"):
        SmoothedLoss(both_positive, scale=-1)
    with pytest.raises(ArgumentError, match="fn is 3"):
        SmoothedLoss(3)
    with pytest.raises(ArgumentError, match=r"distribution is 'gaussian'.*sample and derivatives"):
        SmoothedLoss(both_positive, distribution="gaussian")
    with pytest.raises(ArgumentError, match=r"distribution is <class .*Gumbel'>.*Gaussian\(\)"):
        SmoothedLoss(both_positive, distribution=Gumbel)
    with pytest.raises(ArgumentError, match=r"variance_reduction='baseline' is not known.*'leave_one_out'"):
        SmoothedLoss(both_positive, variance_reduction="baseline")
    with pytest.raises(ArgumentError, match=r"generator is 3\. Pass a torch\.Generator"):
        SmoothedLoss(both_positive, generator=3)
    with pytest.raises(ArgumentError, match="curvature is 'hesian'"):
        SmoothedLoss(both_positive).expand(y, curvature="hesian")
    with pytest.raises(ArgumentError, match="fn returned NoneType"):
        SmoothedLoss(lambda y: None)(y)
    with pytest.raises(ArgumentError, match=r"fn returned list.*torch\.stack"):
        SmoothedAlgorithm(lambda y: list(y))(y)
    with pytest.raises(ShapeError, match=r"list of 3 targets\? Only tensors and arrays.*torch\.arange\(3\)"):
        SmoothedLoss(lambda y, names: [float(one[0]) for one, _ in zip(y, names, strict=False)])(y, ["a", "b", "c"])
    for unusual in (torch.tensor([1, 2]), torch.tensor(1.0), y.to(torch.float8_e4m3fn)):
        with pytest.raises(ShapeError, match="batch of real outputs"):
            SmoothedLoss(both_positive)(unusual)
        with pytest.raises(ShapeError, match="batch of real outputs"):
            SmoothedLoss(both_positive).expand(unusual)
    with pytest.raises(ArgumentError, match="a target requires a gradient"):
        SmoothedLoss(lambda y, t: y.sum(-1))(y, torch.zeros(3, requires_grad=True))
    with pytest.raises(ShapeError, match=r"target has shape \(10,\) for 3 samples.*functools.partial"):
        SmoothedLoss(lambda y, t: y.sum(-1))(y, torch.zeros(10))


UNUSUAL = {
    "nested": torch.nested.nested_tensor([torch.rand(3), torch.rand(2)], layout=torch.jagged),
    "sparse": torch.eye(2, 3).to_sparse(),
    "on the meta device": torch.ones(2, 3, device="meta"),
    "complex": torch.ones(2, 3, dtype=torch.complex64),
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("smoothed", [SmoothedLoss, SmoothedAlgorithm, Perturbed, FenchelYoungLoss])
def test_outputs_that_are_not_dense_real_numbers_are_refused_in_a_sentence(kind, smoothed):
    targets = [torch.ones(2, 3)] if smoothed is FenchelYoungLoss else []
    with pytest.raises(ArgumentError, match=f"{smoothed.__name__}: the outputs y are .*{kind}"):
        smoothed(lambda y: y)(UNUSUAL[kind], *targets)


@pytest.mark.parametrize("kind", UNUSUAL)
def test_such_targets_are_refused_too(kind):
    with pytest.raises(ArgumentError, match=f"FenchelYoungLoss: .*{kind}"):
        FenchelYoungLoss(lambda costs: costs)(torch.ones(2, 3), UNUSUAL[kind])


def test_a_newton_loss_takes_value_gradient_and_curvature_from_one_call():
    calls = []

    def counted(y):
        calls.append(len(y))
        return both_positive(y)

    y = torch.randn(5, 3, requires_grad=True, generator=generator(30))
    for curvature in ("hessian", "fisher"):
        newton = NewtonLoss(SmoothedLoss(counted, 0.5, 4), curvature)
        for _ in range(2):
            newton(y).backward()
    assert calls == 2 * [*[5] * 4, 20, 20]  # before the first, whether it mixes samples


def test_a_function_that_writes_into_its_input_does_no_harm():
    y = torch.randn(4, 3, dtype=torch.float64, generator=generator(23))
    losses = [
        SmoothedLoss(lambda y: y.clamp_(min=0).sum(-1), 0.5, 4, generator=generator(24)),
        SmoothedLoss(lambda y: y.clamp(min=0).sum(-1), 0.5, 4, generator=generator(24)),
    ]
    before = y.clone()
    first, second = (loss.expand(y) for loss in losses)
    torch.testing.assert_close(first.curvature.dense(), second.curvature.dense())
    assert torch.equal(y, before)


def test_an_empty_batch_has_no_curvature():
    expansion = SmoothedLoss(both_positive, num_samples=4).expand(torch.zeros(0, 3))
    assert expansion.value.shape == (0,)
    assert torch.equal(expansion.curvature.dense(), torch.zeros(3, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
@pytest.mark.parametrize("distribution", [Gaussian(), Gumbel(), Cauchy(), StudentT()], ids=repr)
def test_an_expansion_is_captured_in_a_cuda_graph(distribution, curvature):
    noise = torch.Generator(device="cuda").manual_seed(0)
    loss = SmoothedLoss(both_positive, 0.8, 8, distribution=distribution, antithetic=True, quasi=True, generator=noise)
    y = torch.randn(64, 5, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss.expand(y, curvature=curvature)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(noise)
    with torch.cuda.graph(graph):
        expansion = loss.expand(y, curvature=curvature)
    graph.replay()
    first = expansion.curvature.dense().clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, expansion.curvature.dense())
