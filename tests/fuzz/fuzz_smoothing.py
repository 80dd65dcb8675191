"""Fuzzed calls of smoothing and perturbed optimizers: shapes, ranges, containment, the same noise in any layout."""

from typing import Any

import torch
from drawing import NOT_TENSORS, Draw, same, working
from torch import Tensor

from newton_losses import perturbed, smoothing

DISTRIBUTIONS = (
    smoothing.Gaussian(), smoothing.Logistic(), smoothing.Gumbel(), smoothing.Laplace(), smoothing.Cauchy(),
    smoothing.StudentT(3.0),
)  # fmt: skip
UNUSUAL = (
    torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged), torch.eye(2).to_sparse(),
    torch.ones(2, 2, device="meta"), torch.ones(2, 2).to(torch.float8_e4m3fn),
)  # fmt: skip
TRAILING = ((1,), (3,), (2, 2), (0,))


def cheapest(costs: Tensor) -> Tensor:
    flat = costs.flatten(1)
    return torch.nn.functional.one_hot(flat.argmin(-1), flat.shape[-1]).reshape(costs.shape)


def draw_settings(draw: Draw) -> dict[str, Any]:
    return {
        "scale": draw.pick((0.0, -1.0)) if draw.chance(0.02) else draw.power(-3, 2),
        "num_samples": int(draw.random.integers(0, 3)) * 4 + draw.pick((0, 0, 0, 1)),
        "distribution": draw.pick(DISTRIBUTIONS),
        "antithetic": draw.chance(0.3),
        "quasi": draw.chance(0.2),
        "variance_reduction": draw.pick(("auto", "auto", "leave_one_out", "value", "none")),
    }


def draw_outputs(draw: Draw) -> Tensor:
    return draw.tensor((int(draw.random.integers(0, 4)), *draw.pick(TRAILING)))


def check_expansion(found: Any, y: Tensor, kind: str | None) -> None:
    count, size = len(y), y.shape[1:].numel()
    assert found.value.shape == (count,)
    assert found.gradient.shape == (count, size)
    if kind is None:
        assert found.curvature is None
        return
    matrix = found.curvature.dense()
    assert matrix.shape == (size, size)
    same(matrix, matrix.mT, 1e-5, "symmetry")
    good = torch.isfinite(y).reshape(count, -1).all(1) if y.numel() else torch.zeros(count, dtype=torch.bool)
    if good.any() and y.abs()[good].max() < 1e6:
        assert torch.isfinite(matrix).all(), f"one bad sample spoils the curvature: {matrix}"


def smoothed_loss(draw: Draw) -> None:
    y, settings, seed = draw_outputs(draw), draw_settings(draw), int(draw.random.integers(2**31))
    kind = draw.pick(("hessian", "fisher", None))

    def black_box(inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) > 0).sum(1)

    def loss() -> smoothing.SmoothedLoss:
        return smoothing.SmoothedLoss(black_box, generator=torch.Generator().manual_seed(seed), **settings)

    found = loss().expand(y, curvature=kind)
    check_expansion(found, y, kind)
    assert ((found.value >= 0) & (found.value <= y.shape[1:].numel())).all()
    value = loss()(y.clone(memory_format=torch.contiguous_format))
    same(value, found.value, 1e-5, "value in another layout")


def fenchel_young(draw: Draw) -> None:
    y, settings, seed = draw_outputs(draw), draw_settings(draw), int(draw.random.integers(2**31))
    kind = draw.pick(("hessian", "fisher", None))
    wanted = cheapest(working(y)) if y.numel() and y.is_floating_point() else torch.zeros(y.shape)
    loss = perturbed.FenchelYoungLoss(
        cheapest if y.numel() else (lambda costs: costs), generator=torch.Generator().manual_seed(seed),
        hessian=draw.pick(("jacobian", "optimal_value")), minimize=True, **settings,
    )  # fmt: skip
    found = loss.expand(y, wanted, curvature=kind)
    check_expansion(found, y, kind)
    good = torch.isfinite(y).reshape(len(y), -1).all(1) if y.numel() else torch.zeros(len(y), dtype=torch.bool)
    value, gradient = found.value[good], found.gradient[good]
    # never negative, but for rounding of the costs
    rounding = 1e-4 * working(y)[good].abs().reshape(len(value), -1).sum(1) if len(value) else value
    moderate = torch.isfinite(value)
    assert (value >= -rounding - 1e-4 * settings["scale"] * 1e3)[moderate].all(), f"a negative loss: {value}"
    assert ((gradient >= -1 - 1e-5) & (gradient <= 1 + 1e-5)).all(), f"gradient {gradient}"


def perturbed_optimizer(draw: Draw) -> None:
    y, settings, seed = draw_outputs(draw), draw_settings(draw), int(draw.random.integers(2**31))
    if not y.numel():
        return
    leaf = y.detach().clone().requires_grad_(y.is_floating_point())

    def layer() -> perturbed.Perturbed:
        return perturbed.Perturbed(cheapest, generator=torch.Generator().manual_seed(seed), **settings)

    found = layer()(leaf)
    assert found.shape == y.shape
    good = torch.isfinite(y).reshape(len(y), -1).all(1)
    same(found[good].flatten(1).sum(1), torch.ones(int(good.sum())), 1e-5, "sum of a mean of one-hot solutions")
    same(layer()(y), found, 1e-5, "result in another layout")
    found[good].square().sum().backward()
    assert torch.isfinite(leaf.grad[good]).all(), f"the gradient {leaf.grad} at {y}"
    assert layer().jacobian(y).shape == (*y.shape, *y.shape[1:])


def not_outputs(draw: Draw) -> None:
    thing: Any = draw.pick((*NOT_TENSORS, torch.tensor(1.0), torch.ones(2, 2, dtype=torch.int64), *UNUSUAL))
    draw.pick((
        smoothing.SmoothedLoss(lambda y: y.sum(1)), smoothing.SmoothedAlgorithm(lambda y: y),
        lambda s: perturbed.FenchelYoungLoss(cheapest)(s, s),
        lambda s: perturbed.FenchelYoungLoss(cheapest)(torch.ones(2, 2), s),
        perturbed.Perturbed(cheapest), lambda s: smoothing.SmoothedLoss(cheapest, scale=s),
        lambda s: smoothing.SmoothedLoss(cheapest, num_samples=s), lambda s: smoothing.SmoothedLoss(s),
        lambda s: smoothing.SmoothedLoss(cheapest, distribution=s),
        lambda s: smoothing.SmoothedLoss(cheapest, generator=s),
        lambda s: smoothing.SmoothedLoss(lambda y: s)(torch.ones(2, 2)),
        lambda s: smoothing.SmoothedLoss(lambda y: y.sum(1), variance_reduction=s)(torch.ones(2, 2)),
    ))(thing)  # fmt: skip


CALLS = (smoothed_loss, fenchel_young, perturbed_optimizer, not_outputs)
