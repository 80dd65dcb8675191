"""Fuzzed Newton losses against brute force: derivatives of one sample at a time in float64, the equation by its
definition, and how many samples have to be skipped. No call here may be refused."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from damping_rules import Equation, Rounding, by_definition, draw_damping, is_uneven, root_mean_square
from drawing import Draw, same
from fuzz_newton import UNEVEN, check_solution, watched
from torch import Tensor

import newton_losses as nl

Values = Callable[[Tensor, Tensor], Tensor]
SINGULAR = "not called, a system is singular"


class Exact(NamedTuple):
    """Of the samples that are finite, in float64: values, gradients `(K, m)`, Hessians `(K, m, m)`; which they are."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor
    usable: Tensor


class Drawn(NamedTuple):
    """A loss per sample, and the `Rounding` of its derivatives at z = y - target, `(N, m)`, in units of roundoff."""

    values: Values
    terms: Callable[[Tensor], Rounding]


def draw_loss(draw: Draw, size: int) -> Drawn:
    """A loss per sample with all outputs coupled, and a Hessian that may have eigenvalues of both signs."""
    mixing = torch.from_numpy(draw.random.standard_normal((size, size)))
    which, waves = draw.pick(("bowl", "saddle", "ripples", "entropy")), draw.power(-1, 0.5)
    if size == 1 and which == "entropy":
        which = "bowl"  # it would be linear, and a relative damping has nothing to be relative to

    def values(y: Tensor, target: Tensor) -> Tensor:
        z = (y - target).reshape(len(y), size)
        turned = z @ mixing.to(z.dtype)
        if which == "bowl":
            return turned.square().sum(1) + z.pow(4).sum(1)
        if which == "saddle":
            return (turned * z).sum(1) + 0.1 * z.square().sum(1)
        if which == "ripples":
            return torch.cos(waves * turned).sum(1) + torch.sin(z.sum(1))
        return torch.logsumexp(turned, 1) - z[:, 0]

    def terms(z: Tensor) -> Rounding:
        """The size of what the derivatives add up, and how far they move with what their arguments are added up of."""
        norm, largest = float(mixing.norm()), float(z.norm(dim=1).max())
        turned, root = norm * largest, size**0.5
        if which == "bowl":
            return Rounding(2 * norm**2 + 12 * largest**2, 2 * norm * turned + 4 * largest**3)
        if which == "saddle":
            return Rounding(2 * norm + 0.2 * root, (2 * norm + 0.2) * largest)
        if which == "ripples":
            wave, sine = root * (1 + waves * turned), 1 + root * largest
            return Rounding((waves * norm) ** 2 * wave + size * sine, waves * norm * wave + root * sine)
        return Rounding(2 * norm**2 * (1 + turned), norm * (1 + turned) + 1)

    return Drawn(values, terms)


def brute_force(values: Values, y: Tensor, target: Tensor) -> Exact:
    found = []
    for one, its in zip(y.double(), target.double(), strict=True):
        size = one.numel()

        def alone(flat: Tensor, its: Tensor = its, shape: torch.Size = one.shape) -> Tensor:
            return values(flat.reshape(1, *shape), its[None])[0]

        flat = one.reshape(-1)
        value, gradient = alone(flat), torch.autograd.functional.jacobian(alone, flat)
        hessian = torch.autograd.functional.hessian(alone, flat).reshape(size, size)
        found.append((value.reshape(()), gradient.reshape(size), (hessian + hessian.mT) / 2))
    value, gradient, hessian = (torch.stack(one) for one in zip(*found, strict=True))
    usable = torch.isfinite(value) & torch.isfinite(gradient).all(1)
    return Exact(value[usable], gradient[usable], hessian[usable], usable)


def newton_by_brute_force(draw: Draw) -> str | None:
    shape = (int(draw.random.integers(1, 6)), *draw.pick(((), (1,), (2,), (4,), (2, 2))))
    dtype = draw.pick((torch.float32, torch.float64))
    y, target = (torch.from_numpy(draw.random.standard_normal(shape)).to(dtype) for _ in range(2))
    size = y[0].numel()
    values, terms = draw_loss(draw, size)
    reduction = draw.pick((None, None, None, "mean", "sum"))
    if reduction is None and draw.chance(0.4):
        bad = torch.from_numpy(draw.random.random(len(y)) < 0.5)
        target[bad] = draw.pick((torch.nan, torch.inf, -torch.inf))
    mask = None
    kind = draw.pick(("hessian", "hessian", "fisher", "sample"))
    if kind != "sample" and draw.chance(0.25):
        mask = torch.from_numpy(draw.random.random(shape) < 0.7)
        mask[:, ...] = mask | (mask.reshape(len(y), -1).sum(1) == 0).reshape(-1, *[1] * (y.dim() - 1))
    options: dict[str, Any] = {
        "curvature": kind,
        "damping": draw_damping(draw),
        "spectrum": draw.pick((None, None, "raw", "absolute", "clip")) if kind == "hessian" else None,
        "reduction": reduction,
        "value": draw.pick(("loss", "loss", "quadratic")),
        "check": draw.chance(0.3),
        "on_nonfinite": draw.pick(("warn", "raise", "ignore")),
        "matrix_free": None if mask is not None else draw.pick((None, None, True, False)),
    }
    exact = brute_force(values, y, target)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        found = values(y, target)
        return found if reduction is None else getattr(found, reduction)()

    existing = None if mask is None else mask.reshape(len(y), size)
    if is_singular(exact, options, None if existing is None else existing[exact.usable]):
        return SINGULAR
    newton, leaf = nl.NewtonLoss(loss, **options), y.clone().requires_grad_()
    given = {"mask": mask} if mask is not None else {}
    by_name = draw.chance(0.3)
    call = (lambda: newton(leaf, target=target, **given)) if by_name else (lambda: newton(leaf, target, **given))
    skipped = len(y) - int(exact.usable.sum())
    try:
        found = watched(newton, options["on_nonfinite"], skipped, len(y), call)
    except nl.NewtonLossesError as error:
        raise AssertionError(f"refused: {error}") from error
    if found is None:
        return None
    found.backward()
    count = max(1, int(exact.usable.sum()))
    rows = leaf.grad.reshape(len(y), size).double() * (1 if reduction == "sum" else count)
    assert not rows[~exact.usable].any(), "a sample that is not finite has a step"
    unchecked = None
    if is_uneven(options["damping"], exact.gradient):
        unchecked = UNEVEN
    elif exact.usable.any():
        # as many roundings as lie between z and an entry of the mean Hessian: three products with the matrix, at most
        # ten functions of one number, and the sum over the samples
        roundings = (3 * size + 10 + len(y)) * torch.finfo(dtype).eps / 2
        z = (y.double() - target.double()).reshape(len(y), size)[exact.usable]
        rounding = Rounding(*(roundings * one for one in terms(z)))
        check_rows(exact, rows[exact.usable], options, existing, dtype, rounding)
    relative = 1e-9 if dtype == torch.float64 else 1e-4
    if options["value"] == "loss":
        total = exact.value.sum() if reduction == "sum" else exact.value.mean()
        same(found, total if len(exact.value) else torch.tensor(torch.nan), relative, "value", relative)
    else:
        halves = rows[exact.usable].square().sum(1) / 2
        wanted = halves.sum() if reduction == "sum" else halves.sum() / count
        same(found, wanted, 1e-4 if dtype == torch.float32 else 1e-9, "quadratic value", 1e-30)
    return unchecked


def is_singular(exact: Exact, options: dict[str, Any], mask: Tensor | None) -> bool:
    """Whether λ meets a negative eigenvalue: always with "auto" and one output. Such a sample has no solution."""
    if options["curvature"] == "sample" or not exact.usable.any():
        return False
    sizes = [torch.linalg.eigvalsh(one.matrix).abs() for one in equations(exact, options, mask)]
    is_close = any(bool(size.min() <= 1e-6 * size.max()) for size in sizes)
    return is_close and options["curvature"] == "hessian"  # a Fisher and λ > 0 always have one


def check_rows(
    exact: Exact,
    rows: Tensor,
    options: dict[str, Any],
    mask: Tensor | None,
    dtype: torch.dtype,
    rounding: Rounding,
) -> None:
    """Put the steps back into the equation that defines them."""
    rule, kind, gradient = options["damping"], options["curvature"], exact.gradient
    relative = 1e-9 if dtype == torch.float64 else 5e-6
    if options["matrix_free"]:
        relative = max(relative, 1e-5)  # the iterative solver ends at a residual of 1e-6
    tiny = torch.finfo(dtype).tiny
    if kind == "sample":
        check_own_parts(gradient, rows, rule, relative, len(exact.usable), rounding.gradient)
        return
    if kind == "fisher":  # gᵀg of gradients that are off
        rounding = rounding._replace(curvature=2 * rounding.gradient * float(gradient.norm(dim=1).max()))
    if mask is None:
        (equation,) = equations(exact, options, None)
        check_solution(equation, rows, relative, tiny, rounding)
        return
    mask = mask[exact.usable]
    assert not rows[~mask].any(), "an output that does not exist has a step"
    for equation, own, step in zip(equations(exact, options, mask), mask, rows, strict=True):
        check_solution(equation, step[own][None], relative, tiny, rounding)


def equations(exact: Exact, options: dict[str, Any], mask: Tensor | None) -> list[Equation]:
    """One for all samples, or with a mask, of the usable samples here, one for each."""
    rule, kind, spectrum, gradient = (
        options["damping"], options["curvature"], options["spectrum"], exact.gradient,
    )  # fmt: skip
    if mask is None:
        matrices = exact.hessian if kind == "hessian" else gradient[:, :, None] * gradient[:, None, :]
        return [by_definition(rule, matrices.mean(0), gradient, spectrum, kind, len(exact.usable))]
    gradient = torch.where(mask, gradient, 0.0)
    exists = mask.double()
    pairs = exists.mT @ exists
    both = mask[:, :, None] & mask[:, None, :]
    matrices = exact.hessian if kind == "hessian" else gradient[:, :, None] * gradient[:, None, :]
    exist = pairs.diagonal().sqrt()
    behind = exist.outer(exist) if kind == "fisher" else pairs
    curvature = torch.where(both, matrices, 0.0).sum(0) / behind.clamp(min=1)
    scale = float((curvature.square() * pairs).sum() / pairs.diagonal().sum()) ** 0.5
    if rule == "auto" and kind == "fisher":
        outputs, samples = pairs.diagonal().sum(), pairs.diagonal().max()
        mean = float(outputs / samples)
        scale *= (mean / min(float(samples), mean)) ** 0.5
    size = float(gradient.square().sum() / exists.sum()) ** 0.5
    if kind == "fisher":  # no eigenvalue is negative
        spectrum = "raw"
    return [
        masked_equation(rule, curvature[own][:, own], one[own][None], spectrum, scale, size)
        for one, own in zip(gradient, mask, strict=True)
    ]


def masked_equation(rule: Any, part: Tensor, row: Tensor, spectrum: str | None, scale: float, size: float) -> Equation:
    """`by_definition` of one sample's part, with λ and ρ of the whole batch."""
    normalized = isinstance(rule, str | nl.NormalizedDamping)
    factor = 1.0 if isinstance(rule, str) else getattr(rule, "factor", None)
    damping = float(rule) if factor is None else factor * scale
    chosen = spectrum or ("absolute" if normalized else "raw")
    plain = by_definition(damping or 1.0, part, row, chosen, "hessian")  # which takes a matrix as it is
    if not normalized:
        return plain
    damping = damping or 1.0
    size = size or 1.0
    return Equation(plain.matrix / damping, row / size, 1.0, damping / size, damping, size)


def check_own_parts(gradient: Tensor, rows: Tensor, rule: Any, relative: float, count: int, rounding: float) -> None:
    """gᵢ/(λ + ‖gᵢ‖²/N), with λ from the norms and "auto" in units of ρ.

    A gradient that is off by δ moves g/(λ + ‖g‖²/N) by at most 3δ/λ; λ and ρ move by 2δ and δ of what they are.
    """
    squares = gradient.square().sum(1) / len(gradient)
    among = min(count, gradient.shape[1]) if rule == "auto" else gradient.shape[1]
    scale = float((squares.square().sum() / among).sqrt())
    normalized = isinstance(rule, str | nl.NormalizedDamping)
    factor = 1.0 if isinstance(rule, str) else getattr(rule, "factor", None)
    damping = float(rule) if factor is None else factor * scale or 1.0
    wanted = gradient / (damping + squares[:, None])
    lost = 6 * rounding / (damping + float(squares.min()))
    if normalized:
        length = damping / (float(root_mean_square(gradient)) or 1.0)
        wanted, lost = wanted * length, lost * length
    same(rows, wanted, relative, "own parts", lost + 1e-30)


CALLS = (newton_by_brute_force,) * 4
