"""Perturbed optimizers and the Fenchel-Young loss, against the softmax and finite differences."""

import itertools

import pytest
import torch

from newton_losses import ArgumentError, DerivativeError, ShapeError, newton_target
from newton_losses.curvature import Expandable, LowRank
from newton_losses.perturbed import FenchelYoungLoss, Perturbed
from newton_losses.smoothing import Gaussian, Gumbel, Laplace
from smoothing.standard_errors import assert_unbiased

ESTIMATORS = ["jacobian", "optimal_value"]
SCORES = torch.tensor([0.3, -0.5, 0.8, 0.1], dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def argmax(scores):
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])


def argmin(scores):
    return argmax(-scores)


def cheapest_two(costs):
    """The two cheapest of all: a linear problem with more than one item in its solution."""
    mask = torch.zeros_like(costs, dtype=torch.bool)
    return mask.scatter(-1, costs.topk(2, dim=-1, largest=False).indices, True)


def dearest_two(costs):
    return cheapest_two(-costs)


def two_or_no_answer(costs):
    """The two cheapest, and NaN for a map that holds one, as a careful solver says that it has no answer."""
    return torch.where(costs.isnan().any(-1, keepdim=True), torch.nan, cheapest_two(costs).to(costs.dtype))


@pytest.mark.parametrize("reduction", ["none", "value", "leave_one_out"])
@pytest.mark.parametrize(
    ("minimize", "antithetic", "quasi"),
    [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_gumbel_noise_gives_the_softmax_and_its_jacobian(reduction, minimize, antithetic, quasi):
    scale = 0.6
    layer = Perturbed(
        argmin if minimize else argmax,
        scale,
        8,
        minimize=minimize,
        distribution=Gumbel(),
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(1),
    )
    sign = -1 if minimize else 1

    def softmax(scores):
        return torch.softmax(sign * scores / scale, -1)

    y = SCORES.expand(40_000, 4)
    assert_unbiased(layer(y), softmax(SCORES), 0.01, "output")
    jacobian = torch.func.jacrev(softmax)(SCORES)
    assert_unbiased(layer.jacobian(y), jacobian, 0.015, "jacobian")


def test_backward_through_a_perturbed_argmax():
    """The gradient of ⟨softmax(y), v⟩, in the mean of many samples."""
    scale, direction = 0.6, torch.tensor([1.0, 0.0, -2.0, 0.5], dtype=torch.float64)
    layer = Perturbed(argmax, scale, 8, minimize=False, distribution=Gumbel(), generator=generator(2))
    y = SCORES.repeat(40_000, 1).requires_grad_()
    (layer(y) @ direction).sum().backward()
    expected = torch.func.grad(lambda y: torch.softmax(y / scale, -1) @ direction)(SCORES)
    assert_unbiased(y.grad, expected, 0.04)


def test_an_index_is_not_a_solution():
    with pytest.raises(ShapeError, match=r"returned shape \(20,\) for costs of shape \(20, 3\).*one-hot"):
        Perturbed(lambda scores: scores.argmax(-1))(torch.zeros(2, 3))


@pytest.mark.parametrize("hessian", ESTIMATORS)
@pytest.mark.parametrize("minimize", [False, True])
@pytest.mark.parametrize(
    ("reduction", "antithetic", "quasi"),
    [
        ("none", False, False),
        ("value", False, False),
        ("leave_one_out", False, False),
        ("leave_one_out", True, False),
        ("value", True, True),
        ("leave_one_out", True, True),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode
def test_gumbel_noise_gives_the_cross_entropy(hessian, minimize, reduction, antithetic, quasi):
    """F = σ·logsumexp(±y/σ), so that loss, gradient and Hessian are those of a softmax cross-entropy."""
    scale, label = 0.7, 1
    y = torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64)
    target = torch.nn.functional.one_hot(torch.tensor(label), 3)
    sign = -1 if minimize else 1
    loss = FenchelYoungLoss(
        argmin if minimize else argmax,
        scale,
        8,
        minimize=minimize,
        hessian=hessian,
        distribution=Gumbel(),
        variance_reduction=reduction,
        antithetic=antithetic,
        quasi=quasi,
        generator=generator(1),
    )

    def cross_entropy(y):
        return scale * (torch.logsumexp(sign * y / scale, -1) - sign * y[label] / scale)

    found = [loss.expand(y.expand(1000, 3), target.expand(1000, 3)) for _ in range(50)]
    assert_unbiased(torch.cat([e.value for e in found]), cross_entropy(y), 0.02, "value")
    assert_unbiased(torch.cat([e.gradient for e in found]), torch.func.grad(cross_entropy)(y), 0.01, "gradient")
    expected = torch.func.hessian(cross_entropy)(y)
    assert_unbiased(torch.stack([e.curvature.dense() for e in found]), expected, 0.08, "hessian")


@pytest.mark.parametrize("minimize", [False, True])
@pytest.mark.parametrize("distribution", [Gaussian(), Gumbel()], ids=repr)
def test_against_finite_differences_with_common_random_numbers(distribution, minimize):
    """The gradient is that of the estimated value; both Hessians that of the expected gradient."""
    solver, scale = (cheapest_two if minimize else dearest_two), 0.8
    y = torch.tensor([0.4, -0.2, 0.1, 0.7], dtype=torch.float64)
    target = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)

    def expand(shift, curvature=None, hessian="jacobian", seed=2, draws=200_000):
        loss = FenchelYoungLoss(
            solver,
            scale,
            20,
            minimize=minimize,
            hessian=hessian,
            distribution=distribution,
            antithetic=True,
            generator=generator(seed),
        )
        rows = draws // 20
        return loss.expand((y + shift).expand(rows, 4), target.expand(rows, 4), curvature=curvature)

    # The value is piecewise linear in y for fixed draws: its slope is the gradient, but for draws that
    # change their solution within the step. Between both ends the gradient changes by step·H, so that
    # the mean of both ends, as a trapezoid, is the difference quotient up to step².
    step = 1e-2
    for i, direction in enumerate(torch.eye(4, dtype=torch.float64)):
        up, down = expand(step * direction), expand(-step * direction)
        quotient = (up.value - down.value).mean() / (2 * step)
        slope = (up.gradient + down.gradient)[:, i].mean() / 2
        assert abs(quotient - slope) < 1e-3

    # Differences of the gradient. The step is wide for the sake of the noise, √(1/(draws·step)); a
    # central difference's own error, step²/6 of the third derivative, is below the resolution.
    step = 0.1
    columns = []
    for direction in torch.eye(4, dtype=torch.float64):
        halves = [
            expand(s * step * direction, draws=400_000, seed=3).gradient.reshape(20, -1, 4).mean(1) for s in (1, -1)
        ]
        columns.append((halves[0] - halves[1]) / (2 * step))
    difference = torch.stack(columns, -1)
    for hessian in ESTIMATORS:
        estimates = torch.stack(
            [expand(0.0, "hessian", hessian, seed=10 + r, draws=20_000).curvature.dense() for r in range(40)]
        )
        error = (estimates.var(0) / 40 + difference.var(0) / 20).sqrt()
        assert error.max() < 0.03, hessian
        distance = (estimates.mean(0) - difference.mean(0)).abs()
        assert (distance < 5 * error + 0.01).all(), (hessian, distance, error)


def test_the_value_is_never_negative_and_zero_at_certainty():
    y = torch.randn(200, 4, dtype=torch.float64, generator=generator(4))
    loss = FenchelYoungLoss(cheapest_two, 0.3, 5, generator=generator(5))
    assert (loss(y, cheapest_two(y)) >= 0).all()
    certain = torch.tensor([[0.0, 0.0, 9.0, 9.0]], dtype=torch.float64)
    expansion = loss.expand(certain, cheapest_two(certain))
    assert expansion.value == 0
    assert not expansion.gradient.any()


@pytest.mark.parametrize("count", [5, 1])
@pytest.mark.parametrize("minimize", [False, True])
def test_both_hessians_are_the_lemma_written_out(minimize, count):
    y = torch.randn(count, 4, dtype=torch.float64, generator=generator(6))
    solver, sign = (cheapest_two, -1) if minimize else (dearest_two, 1)
    for name in ESTIMATORS:
        loss = FenchelYoungLoss(
            solver, 0.4, 6, minimize=minimize, hessian=name, variance_reduction="value", generator=generator(7)
        )
        found = loss.expand(y, solver(y)).curvature.dense()
        noise = loss.sampler.draw(y, sign * 0.4, Gaussian(), generator(7)).perturbation()
        expected = torch.zeros(4, 4, dtype=torch.float64)
        for s, i in itertools.product(range(6), range(count)):
            epsilon, cost = noise[s, i], y[i] + noise[s, i]
            w, w0 = solver(cost[None])[0].double(), solver(y[i, None])[0].double()
            if name == "jacobian":
                part = torch.outer(w - w0, epsilon) / 0.16
                expected += sign * (part + part.mT) / 2 / (6 * count)
            else:
                part = torch.outer(epsilon, epsilon) / 0.4**4 - torch.eye(4) / 0.16
                expected += sign * (cost @ w - y[i] @ w0) * part / (6 * count)
        torch.testing.assert_close(found, expected)


def test_backward_gives_the_gradient_and_solves_only_the_draws():
    y = torch.randn(5, 2, 2, dtype=torch.float64, generator=generator(8)).requires_grad_()
    rows = []

    def solver(costs):
        rows.append(len(costs))
        return cheapest_two(costs.flatten(1)).reshape(costs.shape)

    target = solver(y.detach())
    loss = FenchelYoungLoss(solver, 0.5, 6, variance_reduction="value", generator=generator(9))
    loss(y, target).sum().backward()
    loss.generator.manual_seed(9)
    expansion = loss.expand(y, target, curvature="fisher")
    torch.testing.assert_close(y.grad.flatten(1), expansion.gradient)
    loss.expand(y, target, curvature="hessian")
    assert rows[1:] == [30, 30, 35]  # the solution at y itself is only needed for a Hessian
    wide = expansion.gradient.double()
    torch.testing.assert_close(expansion.curvature.dense(), wide.mT @ wide / 5)
    assert isinstance(loss.expand(y[:2], target[:2], curvature="fisher").curvature, LowRank)
    assert isinstance(loss, Expandable)


@pytest.mark.parametrize("good", [[0, 2, 3], [1]])
def test_bad_samples_are_left_out_of_the_curvature(good):
    """The mean over the good samples, from the same draws: the bad ones neither spoil it nor count."""
    y = torch.randn(4, 4, dtype=torch.float64, generator=generator(10))
    bad = torch.full_like(y, torch.nan)
    bad[good] = y[good]
    noise = torch.randn(6, 4, 4, dtype=torch.float64, generator=generator(11))

    class Fixed(Gaussian):
        def sample(self, uniform):
            return noise if uniform.shape[1] == 4 else noise[:, good]

    for hessian in ESTIMATORS:
        loss = FenchelYoungLoss(two_or_no_answer, 0.5, 6, hessian=hessian, distribution=Fixed())
        found = loss.expand(bad, torch.zeros(4, 4)).curvature.dense()
        torch.testing.assert_close(found, loss.expand(y[good], torch.zeros(len(good), 4)).curvature.dense())


def test_laplace_noise_has_the_jacobian_but_not_the_optimal_values_hessian():
    y, target = torch.zeros(3, 4), torch.zeros(3, 4)
    FenchelYoungLoss(cheapest_two, distribution=Laplace()).expand(y, target)
    with pytest.raises(DerivativeError, match=r"under Laplace\(\)"):
        FenchelYoungLoss(cheapest_two, distribution=Laplace(), hessian="optimal_value").expand(y, target)


def test_the_newton_step_descends():
    y = torch.randn(64, 4, dtype=torch.float64, generator=generator(12))
    target = torch.tensor([1, 1, 0, 0]).expand(64, 4)
    loss = FenchelYoungLoss(cheapest_two, 0.5, 200, generator=generator(13))
    expansion = loss.expand(y, target)
    damped = expansion.curvature.dense() + 0.1 * torch.eye(4, dtype=torch.float64)
    step = torch.linalg.solve(damped, expansion.gradient.mT).mT
    assert loss(y - step, target).mean() < 0.5 * expansion.value.mean()


def test_they_show_their_settings_and_defaults():
    for default in (repr(Perturbed(cheapest_two)), repr(FenchelYoungLoss(cheapest_two))):
        assert "scale=0.1, num_samples=10, distribution=Gaussian(), variance_reduction='leave_one_out'" in default
        assert "antithetic=False, quasi=False, minimize=True" in default
    shown = repr(FenchelYoungLoss(cheapest_two, 0.5, 3))
    assert "scale=0.5, num_samples=3, distribution=Gaussian()" in shown
    assert "minimize=True, hessian='jacobian'" in shown


def test_wrong_arguments_teach():
    y = torch.zeros(3, 4)
    with pytest.raises(ArgumentError, match="hessian='H1' is not known"):
        FenchelYoungLoss(cheapest_two, hessian="H1")
    with pytest.raises(ArgumentError, match="got 0 targets"):
        FenchelYoungLoss(cheapest_two)(y)
    with pytest.raises(ShapeError, match=r"target has shape \(3,\) and the costs \(3, 4\)"):
        FenchelYoungLoss(cheapest_two)(y, torch.zeros(3))
    with pytest.raises(ShapeError, match="not an index"):
        FenchelYoungLoss(lambda costs: costs.argmin(-1))(y, y)
    with pytest.raises(DerivativeError, match="FenchelYoungLoss"):
        torch.autograd.functional.hessian(lambda y: FenchelYoungLoss(cheapest_two)(y, y.detach()).sum(), y)


@pytest.mark.gpu
@pytest.mark.parametrize("hessian", ESTIMATORS)
def test_an_expansion_is_captured_in_a_cuda_graph(hessian):
    noise = torch.Generator(device="cuda").manual_seed(0)
    loss = FenchelYoungLoss(cheapest_two, 0.5, 8, hessian=hessian, generator=noise)
    y = torch.randn(64, 5, device="cuda")
    target = cheapest_two(torch.randn(64, 5, device="cuda"))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss.expand(y, target)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(noise)
    with torch.cuda.graph(graph):
        expansion = loss.expand(y, target)
    graph.replay()
    first = expansion.curvature.dense().clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, expansion.curvature.dense())


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu():
    """Not the same draws, so in the mean: the cross-entropy of a softmax."""
    scale, y = 0.7, torch.tensor([0.3, -0.5, 0.8])
    noise = torch.Generator(device="cuda").manual_seed(0)
    loss = FenchelYoungLoss(argmin, scale, 8, distribution=Gumbel(), quasi=True, generator=noise)
    target = torch.tensor([0, 1, 0]).expand(40_000, 3).cuda()
    expansion = loss.expand(y.expand(40_000, 3).cuda(), target)
    softmin = torch.softmax(-y / scale, -1)
    assert_unbiased(expansion.gradient.cpu(), torch.tensor([0.0, 1.0, 0.0]) - softmin, 0.01)
    hessian = (torch.diag(softmin) - torch.outer(softmin, softmin)) / scale
    torch.testing.assert_close(expansion.curvature.dense().cpu(), hessian, rtol=0, atol=0.01)


def test_the_step_of_its_empirical_fisher_is_exact_at_a_small_damping():
    """In float32 with fewer samples than costs, the difference in Woodbury's formula once lost all digits but one."""
    y = torch.randn(20, 50, generator=generator(30))
    loss = FenchelYoungLoss(argmin, scale=1.0, generator=generator(31))
    found = newton_target(loss, y, argmin(y.flip(1)), curvature="fisher", damping=1e-8)
    wide = found.gradient.double()
    system = wide.mT @ wide / 20 + 1e-8 * torch.eye(50, dtype=torch.float64)
    torch.testing.assert_close(found.step.double(), torch.linalg.solve(system, wide.mT).mT, rtol=1e-5, atol=1e-5)


def test_wanted_solutions_come_by_name_as_arrays_and_as_lists():
    y = torch.randn(6, 4, generator=generator(32))
    wanted = cheapest_two(torch.randn(6, 4, generator=generator(33)))

    def value(*targets, **named):
        return FenchelYoungLoss(cheapest_two, 0.5, 4, generator=generator(34))(y, *targets, **named)

    for found in (value(target=wanted), value(wanted.numpy()), value(wanted.tolist())):
        assert torch.equal(found, value(wanted))
    for targets, named in (((wanted,), {"target": wanted}), ((), {"wanted": wanted})):
        with pytest.raises(ArgumentError, match=r"FenchelYoungLoss: got .*Pass one.*target=wanted"):
            value(*targets, **named)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((3, 4), r"One solution for all samples: target\.expand\(6, 3, 4\)"),
        ((6, 3), r"torch\.nn\.functional\.one_hot\(target, 4\)"),
        ((6, 12), r"target\.reshape\(6, 3, 4\)"),
        ((6, 4, 3), r"dimensions in another order\? .*never target\.reshape"),  # which would mix rows and columns
        ((3, 4, 6), "of another batch"),  # and here the samples
        ((5, 3, 4), "of another batch"),
    ],
)
def test_a_wanted_solution_of_another_shape_teaches(shape, says):
    loss = FenchelYoungLoss(cheapest_two)
    with pytest.raises(ShapeError, match=r"has the shape of the costs, here \(6, 3, 4\)\. .*" + says) as caught:
        loss(torch.zeros(6, 3, 4), torch.zeros(shape))
    assert "bind" not in str(caught.value)


def test_a_wanted_solution_gets_no_gradient():
    with pytest.raises(ArgumentError, match=r"FenchelYoungLoss: a target requires a gradient.*detach"):
        FenchelYoungLoss(cheapest_two)(torch.zeros(3, 4), torch.zeros(3, 4, requires_grad=True))
