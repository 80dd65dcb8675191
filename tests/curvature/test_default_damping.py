"""Without a damping it is "auto": on every path of the library, and with nothing undefined at any end of it."""

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import newton_losses as nl
from cases import LOSSES, Case, assert_close, log_sum_exp, quartic, ripples
from newton_losses import InjectFisher, NewtonLoss, SeparabilityError, inject_fisher, newton_loss, newton_target
from newton_losses.convex import repeat_with_fisher
from newton_losses.curvature import Expansion, LowRank, NormalizedDamping, newton_step

PATHS = ("hessian", "fisher", "products", "inject")


def gradient_by(path: str, loss: Callable[..., Tensor], y: Tensor, target: Tensor, **options: object) -> Tensor:
    """What arrives at the outputs, by one of the ways, with the default arguments unless others are given."""
    y = y.detach().clone().requires_grad_()
    if path == "inject":
        total = loss(inject_fisher(y, **options), target).mean()
    elif path == "products":
        total = newton_loss(loss, y, target, curvature="hessian", matrix_free=True, **options)
    else:
        total = NewtonLoss(loss, path, **options)(y, target)
    return torch.autograd.grad(total, y)[0]


@pytest.mark.parametrize("function", [NewtonLoss, newton_target, inject_fisher, InjectFisher, repeat_with_fisher])
def test_the_default_is_auto(function: Callable[..., object]) -> None:
    assert inspect.signature(function).parameters["damping"].default == "auto"


@pytest.mark.parametrize("path", PATHS)
def test_no_damping_is_the_automatic_one(path: str) -> None:
    y, target = Case(ripples, (7, 3)).draw()
    found = gradient_by(path, ripples, y, target)
    assert torch.equal(found, gradient_by(path, ripples, y, target, damping="auto"))
    assert torch.equal(found, gradient_by(path, ripples, y, target, damping=NormalizedDamping(1.0)))
    assert not torch.allclose(found, gradient_by(path, ripples, y, target, damping=0.1))


def test_repeated_parameters_have_it_too() -> None:
    weight = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def gradient(**options: object) -> Tensor:
        (weights,) = repeat_with_fisher((weight,), 5, **options)
        return torch.autograd.grad((weights * x).sum(1).pow(4).mean(), weight)[0]

    assert torch.equal(gradient(), gradient(damping="auto"))


def test_it_is_shown_and_survives_a_copy() -> None:
    assert repr(InjectFisher()) == "InjectFisher(damping='auto')"
    newton = NewtonLoss(quartic, curvature="hessian")
    assert "damping='auto'" in repr(newton)
    y, target = Case(quartic, (7, 3)).draw()
    y.requires_grad_()
    for same in (copy.deepcopy(newton), pickle.loads(pickle.dumps(newton))):
        assert torch.equal(*(torch.autograd.grad(loss(y, target), y)[0] for loss in (newton, same)))


@settings(max_examples=40, deadline=None)
@given(
    scale=st.floats(-6, 6).map(lambda power: 10.0**power),
    loss=st.sampled_from(LOSSES),
    shape=st.sampled_from([(1, 4), (7, 3), (3, 7), (4, 2, 3)]),
    path=st.sampled_from(PATHS),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_the_unit_of_the_loss_does_not_matter(
    scale: float, loss: Callable[..., Tensor], shape: tuple[int, ...], path: str, dtype: torch.dtype
) -> None:
    y, target = Case(loss, shape, dtype).draw()
    found = gradient_by(path, lambda y, target: scale * loss(y, target), y, target)
    # the same rounding everywhere, times a condition below 10; by products the solver stops at 1e-6
    assert_close(
        found, gradient_by(path, loss, y, target), 1e-5 if dtype == torch.float32 or path == "products" else 1e-9
    )


@pytest.mark.parametrize("path", PATHS)
def test_no_step_is_longer_than_the_normalised_gradient(path: str) -> None:
    """An indefinite Hessian with an eigenvalue at −λ would make a raw one infinite."""
    y, target = Case(ripples, (7, 6)).draw()
    plain = nl.expand(ripples, y, target, curvature=None).gradient
    step = 7 * gradient_by(path, ripples, y, target)
    assert (step.norm(dim=1) <= plain.norm(dim=1) / plain.square().mean().sqrt() * (1 + 1e-12)).all()
    assert ((step * plain).sum(1) > 0).all()


FLAT = {
    "no slope": lambda y, _: 0 * y.sum(1),
    "a minimum": lambda y, target: (y - target).square().sum(1),
    "a minimum without curvature": lambda y, target: (y - target).pow(4).sum(1),
    "a maximum": lambda y, target: -(y - target).square().sum(1),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FLAT)
def test_zero_gradients_make_no_step(name: str, dtype: torch.dtype, path: str) -> None:
    y = torch.ones(4, 3, dtype=dtype)
    assert torch.equal(gradient_by(path, FLAT[name], y, y.clone()), torch.zeros(4, 3, dtype=dtype))


@pytest.mark.parametrize(
    "options", [{}, {"curvature": "hessian"}, {"curvature": "hessian", "matrix_free": True}], ids=str
)
@pytest.mark.parametrize("name", FLAT)
def test_zero_gradients_are_not_counted_as_left_out(name: str, options: dict[str, object]) -> None:
    y = torch.ones(4, 3)
    assert newton_target(FLAT[name], y, y.clone(), **options).kept.all()
    inject = InjectFisher()
    FLAT[name](inject(y.clone().requires_grad_()), y).mean().backward()
    assert int(inject.skipped) == 0


@pytest.mark.parametrize("shape", [(7, 3), (3, 7)])
@pytest.mark.filterwarnings("ignore:NewtonLoss. the Hessian of the loss")
@pytest.mark.parametrize("path", ["hessian", "products"])
def test_without_curvature_it_is_the_normalised_gradient(path: str, shape: tuple[int, int]) -> None:
    y, slope = Case(ripples, shape).draw()
    found = shape[0] * gradient_by(path, lambda y, slope: 1e-5 * (slope * y).sum(1), y, slope)
    assert_close(found, slope / slope.square().mean().sqrt(), 1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(5, 1), (1, 1), (6,)])
def test_with_one_output_it_is_half_the_normalised_gradient(path: str, shape: tuple[int, ...]) -> None:
    """C/λ is 1, whatever C is."""
    y, target = Case(quartic, shape).draw()
    plain = 4 * (y - target) ** 3
    assert_close(len(y) * gradient_by(path, quartic, y, target), plain / plain.square().mean().sqrt() / 2, 1e-9)


@pytest.mark.parametrize("path", ["fisher", "inject"])
def test_with_one_sample_the_fisher_shortens_only(path: str) -> None:
    """F = ggᵀ has the one eigenvalue ‖g‖², and λ is that: half of g/ρ, as with one output."""
    y, target = Case(quartic, (1, 4)).draw()
    plain = 4 * (y - target) ** 3
    assert_close(gradient_by(path, quartic, y, target), plain / plain.square().mean().sqrt() / 2, 1e-9)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_an_empty_batch(path: str, shape: tuple[int, ...]) -> None:
    def loss(y: Tensor, _: Tensor) -> Tensor:
        return y.square() if y.dim() == 1 else y.square().sum(1)

    assert gradient_by(path, loss, torch.zeros(shape), torch.zeros(shape)).shape == shape


@pytest.mark.filterwarnings("ignore:(NewtonLoss|InjectFisher). (all of the last|the last sample):UserWarning")
@pytest.mark.parametrize("path", PATHS)
def test_samples_that_are_not_finite_have_no_say(path: str) -> None:
    y, target = Case(quartic, (7, 3)).draw()
    wanted = gradient_by(path, quartic, y[2:], target[2:])
    target[0], target[1, 2] = torch.nan, torch.inf
    found = gradient_by(path, quartic, y, target)
    assert not found[:2].any()
    assert_close(found[2:], wanted, 1e-6 if path == "products" else 1e-12)
    assert not gradient_by(path, quartic, y, target * torch.nan).any()


def test_a_factor_whose_squares_leave_the_range_of_float32() -> None:
    factor = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    steps = [
        newton_step(Expansion(torch.zeros(4), scale * gradient, LowRank(scale * factor)), NormalizedDamping()).rows
        for scale in (1e-25, 1.0, 1e25)
    ]
    assert_close(steps[0], steps[1], 1e-5)
    assert_close(steps[2], steps[1], 1e-5)


class Scored(nn.Module):
    """A float16 network that makes the outputs, with an injection or without."""

    def __init__(self, scaler: torch.amp.GradScaler | None, inject: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 12).reshape(3, 4))
            self.linear.bias.zero_()
        self.inject = InjectFisher(loss_scale=1.0 if scaler is None else scaler) if inject else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inject(self.linear(x))


@pytest.mark.parametrize("inject", [False, True])
def test_half_precision_and_a_grad_scaler(inject: bool) -> None:
    """The scaler's factor, which "auto" could take for the loss's own, is on the gradient until it is taken off."""
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))

    def gradient(scaler: torch.amp.GradScaler | None, spoiled: bool = False) -> Tensor:
        model = Scored(scaler, inject)
        y = model(x)
        target = torch.full((20, 3), torch.inf if spoiled else 1.0)
        loss = quartic(y.float(), target).mean() if inject else NewtonLoss(quartic, "fisher")(y, target)
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            scaler.unscale_(optimizer)
        return model.linear.weight.grad

    plain = gradient(None)
    assert torch.isfinite(plain).all()
    assert plain.norm() > 0.1
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    assert_close(gradient(scaler), plain, 1e-2)  # of bfloat16
    if inject:
        assert not torch.isfinite(gradient(torch.amp.GradScaler("cpu"), spoiled=True)).all()


@pytest.mark.parametrize("path", PATHS)
def test_compiles_as_one_graph(path: str) -> None:
    y, target = Case(ripples, (7, 3)).draw()
    y.requires_grad_()
    if path == "inject":
        function = lambda y, target: ripples(inject_fisher(y), target).mean()  # noqa: E731
    else:
        kind = "fisher" if path == "fisher" else "hessian"
        function = NewtonLoss(ripples, kind, matrix_free=path == "products", check=False)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_close(*(torch.autograd.grad(form(y, target), y)[0] for form in (compiled, function)), 1e-12)


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_compiled_once_for_batches_of_any_size(kind: str) -> None:
    """As the last of an epoch, which is smaller: from the second size on torch's compiler takes it for a symbol."""
    torch._dynamo.reset()
    newton = NewtonLoss(ripples, kind, check=False)
    compiled = torch.compile(copy.deepcopy(newton), fullgraph=True, backend="eager")
    for count in (7, 5, 9):
        y, target = Case(ripples, (count, 3)).draw()
        y.requires_grad_()
        assert_close(*(torch.autograd.grad(form(y, target), y)[0] for form in (compiled, newton)), 1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_inside_of_vmap_and_grad(path: str) -> None:
    case = Case(ripples, (4, 5, 3))
    y, target = case.draw()

    def loss(y: Tensor, target: Tensor) -> Tensor:
        if path == "inject":
            return ripples(inject_fisher(y), target).mean()
        kind = "fisher" if path == "fisher" else "hessian"
        return newton_loss(ripples, y, target, curvature=kind, matrix_free=path == "products")

    found = torch.func.vmap(torch.func.grad(loss))(y, target)
    assert_close(found, torch.stack([gradient_by(path, ripples, *one) for one in zip(y, target, strict=True)]), 1e-10)


def test_the_first_call_is_checked_as_ever() -> None:
    y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SeparabilityError):
        NewtonLoss(lambda y: (y - y.mean(0)).square().sum(1), curvature="hessian")(y)
    newton = NewtonLoss(log_sum_exp, curvature="hessian")
    newton(y.requires_grad_(), y.detach()).backward()
    assert not newton.check


@pytest.mark.parametrize("function", [NewtonLoss, newton_target])
def test_the_default_curvature_is_the_fisher(function: Callable[..., object]) -> None:
    """First derivatives only: it works for any loss, and no wrong second derivative can enter."""
    assert inspect.signature(function).parameters["curvature"].default == "fisher"
    y, target = Case(ripples, (7, 3)).draw()
    y.requires_grad_()
    one, other = (newton_loss(ripples, y, target, **options) for options in ({}, {"curvature": "fisher"}))
    assert torch.equal(*(torch.autograd.grad(loss, y)[0] for loss in (one, other)))


def test_gradients_whose_squares_vanish_in_float32_keep_their_size() -> None:
    y, options = torch.tensor([[0.3, -1.2], [0.7, 0.4]]), {"damping": NormalizedDamping(0.01), "curvature": "hessian"}
    plain, small = (newton_target(lambda y, s=s: s * ripples(y, 0 * y), y, **options).step for s in (1.0, 2e-22))
    assert_close(small, plain, 1e-5)
