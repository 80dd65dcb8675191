"""Fuzzed calls of the Newton loss: each result is put back into the equation that defines it, in float64."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from damping_rules import Equation, Rounding, beyond_range, by_definition, draw_damping, exact, is_uneven
from drawing import NOT_TENSORS, Draw, same, tolerance, working
from torch import Tensor

import newton_losses as nl
from newton_losses.curvature._fisher import LEAST_FACTOR

# Of one number z: a loss, its first and its second derivative. A sample's loss is their sum.
LOSSES = {
    "square": (lambda z: z.square() / 2, lambda z: z, torch.ones_like),
    "fourth": (lambda z: z.pow(4), lambda z: 4 * z.pow(3), lambda z: 12 * z.square()),
    "cosine": (torch.cos, lambda z: -torch.sin(z), lambda z: -torch.cos(z)),
    "linear": (lambda z: 2 * z, lambda z: torch.full_like(z, 2.0), torch.zeros_like),
}
# What becomes of a call whose step cannot be compared: its error may be as large as itself, or float64 is too short.
BEYOND_DIGITS, BEYOND_RANGE = "result beyond float64's digits", "result beyond float64's range"
UNEVEN = "result of a shortened sample"
NO_DIGITS = 0.1
NO_ROUNDING = Rounding()
TRAILING = ((), (1,), (2,), (3,), (5,), (2, 2), (0,), (1, 3))
WRONG_OPTIONS: tuple[dict[str, Any], ...] = (
    {"curvature": "gauss"}, {"curvature": None}, {"damping": 0.0}, {"damping": -1}, {"damping": float("nan")},
    {"damping": float("inf")}, {"damping": "1"}, {"damping": None}, {"damping": True}, {"damping": torch.ones(2)},
    {"damping": torch.tensor(-1.0)}, {"damping": torch.tensor(torch.inf)}, {"damping": lambda _: 0.0},
    {"damping": lambda _: "small"}, {"spectrum": "abs"}, {"reduction": "average"}, {"process_group": "world"},
)  # fmt: skip


def make_loss(name: str, shape: torch.Size, reduction: str | None) -> Any:
    function = LOSSES[name][0]

    def loss(y: Tensor, target: Tensor) -> Tensor:
        values = function((y - target).reshape(len(y), shape[1:].numel())).sum(1)
        return values.mean() if reduction == "mean" else values.sum() if reduction == "sum" else values

    return loss


def newton_target(draw: Draw) -> str | None:
    y = draw.tensor((int(draw.random.integers(5)), *draw.pick(TRAILING)))
    target = draw.tensor(y.shape, y.dtype, bad=0.05)
    name, reduction = draw.pick(tuple(LOSSES)), draw.pick((None, None, "mean", "sum"))
    options = draw_options(draw, reduction)
    loss = make_loss(name, y.shape, reduction)
    found = nl.newton_target(loss, y, target, **options)
    z = (working(y) - working(target)).reshape(found.step.shape)
    check_expansion(name, z, found, options["curvature"], reduction)
    unchecked = check_step(found, options)
    assert found.target.dtype == y.dtype
    assert torch.equal(found.target.isnan(), (y - found.step.reshape(y.shape).to(y.dtype)).isnan())
    same(found.target, y - found.step.reshape(y.shape).to(y.dtype), 0.0, "target")
    if draw.chance(0.4):
        check_loss_and_gradient(draw, loss, y, target, found, options)
    return unchecked


def draw_options(draw: Draw, reduction: str | None) -> dict[str, Any]:
    if draw.chance(0.03):
        usual = {"curvature": "hessian", "damping": 1.0, "spectrum": "raw", "reduction": reduction}
        return {**usual, **draw.pick(WRONG_OPTIONS)}
    options = {
        "curvature": draw.pick(("hessian", "fisher")),
        "damping": draw_damping(draw),
        "spectrum": draw.pick(("raw", None, None, "absolute", "clip")),
        "reduction": reduction,
    }
    if options["spectrum"] is None and draw.chance(0.3):
        del options["spectrum"]
    return options


def check_expansion(name: str, z: Tensor, found: nl.NewtonTarget, kind: str, reduction: str | None) -> None:
    """Gradients and curvature against the derivatives written down by hand, of the same numbers z."""
    if z.numel() == 0:
        assert not found.step.any()
        return
    _, first, second = LOSSES[name]
    wide, limit = z.double(), torch.finfo(z.dtype).max ** 0.5 / 10
    usable = torch.isfinite(wide).all(1)
    # Where a power leaves the range, which samples remain depends on the order of operations. A reduced loss
    # is not finite for any sample if it is not for one.
    if (wide[usable].abs() ** 4 > limit).any() or (reduction is not None and not usable.all()):
        return
    relative, tiny = tolerance(z), torch.finfo(z.dtype).tiny
    at, count = wide[usable], usable.sum().clamp(min=1)
    same(found.gradient[usable], first(at), relative, "gradient", tiny)
    wanted = torch.diag(second(at).sum(0) / count) if kind == "hessian" else first(at).mT @ first(at) / count
    same(found.curvature.dense(), wanted, 10 * relative, "curvature", tiny)


def check_step(found: nl.NewtonTarget, options: dict[str, Any]) -> str | None:
    """The equation that the damping rule defines holds up to rounding; zero rows for what was left out.

    Where it cannot be checked, the answer says why.
    """
    assert torch.isfinite(found.step).all(), f"the step is not finite: {found.step}"
    assert not found.step[~found.kept].any(), "a sample that was left out has a step"
    usable = torch.isfinite(found.value) & torch.isfinite(found.gradient).all(1)
    curvature, gradient = exact(found.curvature), found.gradient[usable].double()
    rule = options["damping"]
    if found.step.shape[1] == 0 or not usable.any():
        return None
    if beyond_range(rule, curvature, gradient):
        return BEYOND_RANGE
    equation = by_definition(
        rule, curvature, gradient, options.get("spectrum"), options["curvature"], len(found.gradient)
    )
    if isinstance(rule, str | nl.NormalizedDamping) and options.get("spectrum") != "raw":
        assert torch.equal(found.kept, usable), f"{rule!r} left out {~found.kept & usable} of a definite system"
    equation = equation._replace(rows=equation.rows[found.kept[usable]])
    digits = fisher_digits(equation, len(gradient)) if options["curvature"] == "fisher" else 0.0
    if digits > NO_DIGITS:
        return BEYOND_DIGITS
    tiny = torch.finfo(found.step.dtype).tiny
    is_mixed = len(found.gradient) < found.step.shape[1]
    check_solution(
        equation, found.step[found.kept].double(), tolerance(found.step), tiny, NO_ROUNDING, digits, is_mixed
    )
    return None


def fisher_digits(equation: Equation, count: int) -> float:
    """How far a float64 solution of a Fisher's system may be off, relative to itself.

    F is a sum of N products; a Cholesky decomposition and two substitutions of m unknowns are the exact solution of a
    system whose matrix is off by m(3m + 1) units of roundoff (Higham, Accuracy and Stability, theorem 10.4). The
    condition number of F + λI is at most ‖F + λI‖/λ.
    """
    size = len(equation.matrix)
    if equation.damping == 0:  # relative to no Fisher at all
        return 0.0
    condition = float(torch.linalg.matrix_norm(equation.matrix, 2)) / equation.damping
    return (size * (3 * size + 1) + count) * 2**-53 * condition


def check_solution(
    equation: Equation,
    step: Tensor,
    relative: float,
    tiny: float,
    rounding: Rounding = NO_ROUNDING,
    digits: float = 0.0,
    is_mixed: bool = False,
) -> None:
    """As small a residual as rounding the step to its dtype allows, each row on its own.

    `rounding` is that of the derivatives, `digits` the relative error of the step from a solver that is not backward
    stable: one that goes through the N×N products of the gradients, or through an inverse. Where the first takes the
    samples for its unknowns, since they are fewer than the outputs, `is_mixed`: its error is relative to all steps.
    """
    left = torch.linalg.vector_norm(step @ equation.matrix - equation.rows, dim=1)
    norm, tiny = equation.terms, tiny * max(1.0, equation.length)
    size = norm * (torch.linalg.vector_norm(step, dim=1) + tiny)
    lost = tiny * float(norm) if equation.length > 1 else tiny
    bound = relative * (size + torch.linalg.vector_norm(equation.rows, dim=1)) + lost
    bound = bound + digits * (norm * torch.linalg.matrix_norm(step) if is_mixed else size)
    bound = bound + rounding.residual(equation, step)
    assert (left <= bound).all(), f"(C + λI)·step misses the gradient by {left}, more than {bound}"


def check_loss_and_gradient(
    draw: Draw, loss: Any, y: Tensor, target: Tensor, found: nl.NewtonTarget, options: dict[str, Any]
) -> None:
    leaf = y.detach().clone().requires_grad_()
    if draw.chance(0.5):
        value = nl.newton_loss(loss, leaf, target, **options)
    else:
        action = draw.pick(("warn", "raise", "ignore"))
        newton = nl.NewtonLoss(loss, check=False, on_nonfinite=action, **options)
        kept = found.kept
        value = watched(newton, action, int((~kept).sum()), len(kept), lambda: newton(leaf, target))
        if value is None or is_uneven(options["damping"], found.gradient):
            return
    value.backward()
    total = options["reduction"] == "sum"
    wanted = found.step if total else found.step / found.count
    info = torch.finfo(working(y).dtype)
    unit = info.tiny * info.eps  # below the normal numbers both are rounded to whole ones of these
    wanted = wanted.reshape(y.shape).to(y.dtype)
    relative = 1e-3 if y.dtype.itemsize == 2 else 1e-6
    if options["curvature"] == "fisher" and working(y).dtype == torch.float32:  # by an inverse, on one side at least
        outputs = found.gradient.shape[1]
        relative = max(relative, info.eps * (1 + outputs**0.5 / LEAST_FACTOR))
    same(leaf.grad, wanted, relative, "backward", tiny=2 * unit)
    with torch.no_grad():
        same(value, nl.newton_loss(loss, y, target, **options), 1e-5, "value with and without gradients")


def watched(module: Any, action: str, skipped: int, count: int, call: Callable[[], Any]) -> Any:
    """Call one step that skips so many of its samples: they are counted, and said as `action` wants. `None`: raised."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = call()
        except nl.NonFiniteError:
            assert action == "raise", f"raised although on_nonfinite={action!r}"
            result = None
    assert int(module.skipped) == skipped, f"{int(module.skipped)} samples counted, {skipped} skipped"
    assert (result is None) == (action == "raise" and skipped > 0)
    assert len(told) == (action == "warn" and 0 < count == skipped), [str(one.message) for one in told]
    return result


def inject_fisher(draw: Draw) -> str | None:
    y = draw.tensor((int(draw.random.integers(6)), *draw.pick(TRAILING)), bad=0.0)
    reduction, damping = draw.pick(("mean", "sum")), draw_damping(draw)
    scale = draw.power(-3, 3) if draw.chance(0.2) else 1.0
    leaf = y.detach().clone().requires_grad_(y.is_floating_point())
    module = None
    if draw.chance(0.5):
        out = nl.inject_fisher(leaf, damping, reduction=reduction, loss_scale=scale)
    else:
        module = nl.InjectFisher(damping, reduction=reduction, loss_scale=scale, on_nonfinite="ignore")
        out = module(leaf)
    assert torch.equal(out, y), "the forward pass is not the identity"
    arrived = draw.tensor(y.shape, y.dtype)
    out.backward(arrived)
    if module is not None and is_uneven(damping, working(arrived).reshape(len(y), y[:1].numel())):
        assert torch.isfinite(leaf.grad).all()
        return UNEVEN
    if module is not None and y.numel():
        rows = leaf.grad.reshape(len(y), -1)
        lost = int((~torch.isfinite(working(arrived)).reshape(len(y), -1).all(1)).sum())
        still = int((~rows.any(1)).sum())
        assert lost <= int(module.skipped) <= still, f"{int(module.skipped)} counted, {lost} of {still} without a step"
    return check_injected(leaf.grad, arrived, damping, reduction, scale)


def check_injected(left: Tensor, arrived: Tensor, damping: Any, reduction: str, scale: float) -> str | None:
    """As `check_step`, by what came back from the identity."""
    assert left.dtype == arrived.dtype
    if arrived.numel() == 0:
        return None
    share = len(arrived) if reduction == "mean" else 1
    rows, gone = working(arrived).reshape(len(arrived), -1), left.reshape(len(arrived), -1).double()
    good = torch.isfinite(rows * (share / scale)).all(1)
    assert not gone[~good].any(), "a sample that is not finite sends something back"
    if not good.any():
        return None
    count = int(good.sum())
    gradient = rows[good].double() * (share / scale)
    step = gone[good] / scale * (count if reduction == "mean" else 1)
    fisher = gradient.mT @ gradient / count
    if beyond_range(damping, fisher, gradient):
        return BEYOND_RANGE
    equation = by_definition(damping, fisher, gradient, None, "fisher", len(rows))
    relative = 1e-2 if arrived.dtype.itemsize == 2 else tolerance(arrived)
    digits = fisher_digits(equation, count)
    if digits > NO_DIGITS:
        return BEYOND_DIGITS
    # a number below the range of the dtype is lost in a step, whatever the tolerance
    tiny = torch.finfo(arrived.dtype).smallest_normal * count / scale / relative
    there = torch.isfinite(step).all(1)
    assert there.all() or arrived.dtype == torch.float16, "what leaves is not finite"  # beyond 65504 there
    # One that was left out has no solution in the range of its dtype.
    leaving = (
        torch.linalg.solve_ex(equation.matrix, equation.rows.mT)[0].mT * scale / (count if reduction == "mean" else 1)
    )
    there &= gone[good].any(1) | (leaving.abs().amax(1) <= torch.finfo(arrived.dtype).max)
    equation, is_mixed = equation._replace(rows=equation.rows[there]), rows.shape[0] < rows.shape[1]
    check_solution(equation, step[there], relative, tiny, NO_ROUNDING, digits, is_mixed)
    return None


def expand_alone(draw: Draw) -> None:
    """`expand` in all forms, the same numbers in another layout, and products equal to the stored matrix."""
    y = draw.tensor((int(draw.random.integers(1, 5)), *draw.pick(TRAILING)), bad=0.1)
    loss = make_loss(draw.pick(tuple(LOSSES)), y.shape, None)
    target = torch.zeros_like(y)
    kind = draw.pick(("hessian", "fisher", None))
    found = nl.expand(loss, y, target, curvature=kind)
    plain = nl.expand(loss, y.clone(memory_format=torch.contiguous_format), target, curvature=kind)
    same(found.value, plain.value, 1e-6, "value in another layout")
    same(found.gradient, plain.gradient, 1e-6, "gradient in another layout")
    if kind is not None and y.numel():
        same(found.curvature.dense(), plain.curvature.dense(), 1e-5, "curvature in another layout")
        vectors = torch.eye(found.gradient.shape[1], dtype=found.curvature.dense().dtype)
        same(found.curvature.product(vectors), found.curvature.dense(), 1e-9, "product")


def not_outputs(draw: Draw) -> None:
    thing = draw.pick((*NOT_TENSORS, torch.tensor(1.0), torch.ones(2, 2, dtype=torch.int64)))
    call = draw.pick(
        (
            nl.newton_target,
            nl.newton_loss,
            nl.NewtonLoss(make_loss("square", torch.Size((1, 1)), None), curvature="hessian"),
        )
    )
    try:
        if isinstance(call, nl.NewtonLoss):
            call(thing, thing)
        elif draw.chance(0.5):
            call(make_loss("square", torch.Size((1, 1)), None), thing, thing)
        else:
            nl.inject_fisher(thing, 0.1)
    except nl.ArgumentError:
        return
    raise AssertionError(f"{thing!r} was taken for outputs")


CALLS = (newton_target,) * 4 + (inject_fisher,) * 3 + (expand_alone, not_outputs)
