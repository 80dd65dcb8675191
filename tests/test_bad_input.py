"""Bad input gets an error that teaches, or is contained without touching the other samples."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import Case, assert_close, ripples
from newton_losses import (
    ArgumentError,
    DerivativeError,
    InjectFisher,
    NewtonLoss,
    RunningDamping,
    SeparabilityError,
    ShapeError,
    check_loss,
    expand,
    inject_fisher,
    newton_loss,
    newton_target,
)
from newton_losses.diagnose import diagnose
from newton_losses.sorting import SortingLoss

KINDS = ["hessian", "fisher"]


def test_a_loss_of_the_wrong_shape() -> None:
    y = torch.ones(100, 5)
    with pytest.raises(ShapeError, match=r"returned shape \(5,\) for outputs of shape \(100, 5\).*batch dimension\?"):
        newton_loss(lambda y: y.sum(0), y, curvature="hessian")
    with pytest.raises(ShapeError, match=r"returned shape \(100, 5\).*flatten\(1\)\.sum\(1\)"):
        newton_loss(lambda y: y.square(), y, curvature="hessian")
    with pytest.raises(ShapeError, match="one per sample, although reduction='mean'"):
        newton_loss(lambda y: y.sum(1), y, reduction="mean", curvature="hessian")
    with pytest.raises(ShapeError, match="reduction='none' promises one value per sample"):
        newton_loss(lambda y: y.mean(), y, reduction="none", curvature="hessian")
    with pytest.raises(ShapeError, match="Did it not reduce over the outputs of a sample"):
        newton_loss(lambda y: y.square(), y, reduction="none", curvature="hessian")


def test_a_loss_that_returns_no_tensor_or_no_floats() -> None:
    with pytest.raises(ArgumentError, match="returned a float"):
        newton_loss(lambda y: 1.0, torch.ones(2, 2), curvature="hessian")
    with pytest.raises(ArgumentError, match="int64"):
        newton_loss(lambda y: y.argmax(1), torch.ones(2, 2), curvature="hessian")
    with pytest.raises(ArgumentError, match="callable"):
        newton_loss(3, torch.ones(2, 2), curvature="hessian")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (3, "callable as loss"),
        (torch.nn.MSELoss, r"the class MSELoss.*MSELoss\(\.\.\.\)"),
        (SortingLoss, r"the class SortingLoss.*SortingLoss\(\.\.\.\)"),
        (torch.ones(2), r"a tensor of shape \(2,\)\. Pass the function"),  # the value, in the place of the loss
    ],
)
def test_what_is_no_loss_is_refused_everywhere(loss, words: str) -> None:
    y, target = torch.ones(3, 2, requires_grad=True), torch.zeros(3, 2)
    with pytest.raises(ArgumentError, match=words):
        NewtonLoss(loss, curvature="hessian")
    for function in (newton_loss, newton_target, expand, diagnose, torch.no_grad()(newton_loss)):
        with pytest.raises(ArgumentError, match=words):
            function(loss, y, target)


def test_a_class_is_no_damping() -> None:
    for make in (lambda rule: NewtonLoss(ripples, damping=rule), lambda rule: inject_fisher(torch.ones(2, 2), rule)):
        with pytest.raises(ArgumentError, match=r"the class RunningDamping.*RunningDamping\(\)"):
            make(RunningDamping)


def mixes_by_mean(y: Tensor) -> Tensor:
    return (y - y.mean(0)).square().sum(1)


def mixes_by_rank(y: Tensor) -> Tensor:
    return torch.cumsum(y.sort(0).values, 0).square().sum(1)


def mixes_when_square(y: Tensor) -> Tensor:
    """Reduced over the batch by mistake; with N = m the shape does not tell."""
    return y.square().sum(0)


@pytest.mark.parametrize("loss", [mixes_by_mean, mixes_by_rank, mixes_when_square])
@pytest.mark.parametrize("reduced", [False, True])
def test_a_loss_that_mixes_the_batch(loss, reduced: bool) -> None:
    y = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    if reduced and loss is mixes_when_square:
        pytest.skip("its mean over everything is separable")
    newton = NewtonLoss((lambda y: loss(y).mean()) if reduced else loss, curvature="hessian")
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        newton(y)
    NewtonLoss(loss, check=False, curvature="hessian")(y)


def mixes_neighbours(y: Tensor) -> Tensor:
    """Samples as pairs, one after the other."""
    return torch.nn.functional.softplus(y[0::2] - y[1::2]).sum(1).mean()


def mixes_the_documents_of_a_query(y: Tensor) -> Tensor:
    """The documents of four queries, all mixed up, each compared with those of its own query."""
    query = torch.randperm(len(y), generator=torch.Generator().manual_seed(1)) % 4
    scores = y.sum(1)
    softened = torch.where(query[:, None] == query, scores - scores[:, None], -torch.inf)
    return torch.logsumexp(softened, 1)


@pytest.mark.parametrize("loss", [mixes_neighbours, mixes_the_documents_of_a_query])
def test_a_loss_that_mixes_within_groups(loss) -> None:
    y = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        NewtonLoss(loss, curvature="hessian")(y)


def test_partners_in_the_same_half_and_of_the_same_parity_are_found() -> None:
    """0 with 2 and 1 with 3: both halves and every other sample keep such pairs together; a draw by chance does not."""
    partner = torch.arange(8) ^ 2
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        NewtonLoss(lambda y: (y - y[partner] / 2).square().sum(1))(
            torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
        )


def test_a_loss_that_mixes_the_batch_beside_noise_of_torch_is_found() -> None:
    """With the same numbers in each call; else it would differ from itself, and nothing could be said."""
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        NewtonLoss(lambda y: (y - y.mean(0) + torch.rand_like(y)).square().sum(1))(
            torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
        )


@pytest.mark.parametrize("first", [torch.zeros(6, 2), torch.ones(1, 2), torch.ones(0, 2)], ids=["equal", "one", "none"])
def test_a_batch_that_cannot_tell_leaves_the_check_to_the_next(first: Tensor) -> None:
    """As with a last layer of zeros, or where the first batch is a single sample."""
    newton = NewtonLoss(mixes_by_mean, damping=1.0, curvature="hessian")
    with warnings.catch_warnings(action="ignore"):
        newton(first)
    with pytest.raises(SeparabilityError, match="mixes the samples"):
        newton(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))


def test_batches_of_one_sample_are_checked_once() -> None:
    calls = []

    def loss(y: Tensor) -> Tensor:
        calls.append(len(y))
        return y.pow(4).sum(1)

    newton, y = NewtonLoss(loss, "fisher", damping=1.0), torch.ones(1, 3)
    newton(y)
    before = len(calls)
    newton(y)
    assert len(calls) == before + 1


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_separable_losses_pass_the_check(count: int) -> None:
    y, target = Case(ripples, (count, 4)).draw()
    NewtonLoss(ripples, curvature="hessian")(y, target)
    NewtonLoss(lambda y, target: ripples(y, target).mean(), curvature="hessian")(y, target)
    NewtonLoss(lambda y: (y + torch.randn(4)).square().sum(1), curvature="hessian")(y)


def test_a_loss_with_noise_of_its_own_cannot_be_checked_and_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.ones(4, 3)
    NewtonLoss(lambda y: (y + torch.randn(3, generator=generator)).square().sum(1), curvature="hessian")(y)


def test_a_loss_that_does_not_depend_on_the_outputs() -> None:
    y = torch.ones(3, 2)
    for loss in (lambda y: y.detach().sum(1), lambda y: y.round().sum(1) * 0 + torch.ones(3)):
        newton = NewtonLoss(loss, curvature="hessian")
        if loss(y.requires_grad_()).requires_grad:
            continue
        with pytest.raises(DerivativeError, match="does not depend on the outputs"):
            newton(y)


def test_outputs_that_cannot_be_outputs() -> None:
    with pytest.raises(ShapeError, match="batch dimension"):
        newton_loss(lambda y: y, torch.tensor(1.0), curvature="hessian")
    with pytest.raises(ArgumentError, match="int64"):
        newton_loss(lambda y: y.sum(1), torch.ones(2, 2, dtype=torch.int64), curvature="hessian")
    with pytest.raises(ArgumentError, match="16 bits at least"):
        newton_loss(lambda y: y.sum(1), torch.ones(2, 2).to(torch.float8_e4m3fn), curvature="hessian")
    for function in (inject_fisher, lambda y: newton_loss(lambda y: y.sum(1), y, curvature="hessian")):
        with pytest.raises(ArgumentError, match=r"y\.to_dense\(\)"):
            function(torch.ones(2, 2).to_sparse())
    with pytest.raises(ArgumentError, match="complex64"):
        inject_fisher(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(ArgumentError, match="loss_scale=True"):
        inject_fisher(torch.ones(2, 2), loss_scale=True)
    with pytest.raises(ArgumentError, match="got list"):
        newton_loss(lambda y: y, [1.0], curvature="hessian")


def test_mistyped_options() -> None:
    y = torch.ones(2, 2)
    for options in ({"curvature": "hesse"}, {"spectrum": "abs"}, {"value": "z"}, {"reduction": "average"}):
        with pytest.raises(ArgumentError, match=next(iter(options.values()))):
            newton_loss(lambda y: y.square().sum(1), y, **options)
    with pytest.raises(ArgumentError, match="gauss"):
        NewtonLoss(lambda y: y, curvature="gauss")
    with pytest.raises(ArgumentError, match="it can be"):
        expand(lambda y: y.sum(1), y, curvature="gauss")


def test_the_users_own_mistake_keeps_its_own_error() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        newton_loss(lambda y, t: (y - t).sum(1), torch.ones(2, 3), torch.ones(2, 4), curvature="hessian")


def test_an_own_expansion_of_the_wrong_shape() -> None:
    from newton_losses import Expansion

    class Own:
        def __init__(self, *shapes: tuple[int, ...]) -> None:
            self.parts = [torch.ones(shape) for shape in shapes]

        def expand(self, y: Tensor, *, curvature: str | None) -> Expansion:
            return Expansion(*self.parts)

    with pytest.raises(ShapeError, match=r"\(2,\) and \(2, 3\)"):
        newton_loss(Own((2,), (2, 4), (3, 3)), torch.ones(2, 3), curvature="hessian")
    with pytest.raises(ShapeError, match=r"curvature \(4, 4\)"):
        newton_loss(Own((2,), (2, 3), (4, 4)), torch.ones(2, 3), curvature="hessian")
    with pytest.raises(ArgumentError, match="no curvature"):
        newton_loss(Own((2,), (2, 3)), torch.ones(2, 3), curvature="hessian")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["outputs", "targets"])
@pytest.mark.parametrize("matrix_free", [False, True])
def test_one_bad_sample_is_as_if_it_were_not_there(bad: float, kind: str, where: str, matrix_free: bool) -> None:
    case = Case(ripples, (5, 3))
    y, target = case.draw()
    (y if where == "outputs" else target)[2, 1] = bad
    good = [0, 1, 3, 4]
    leaf, rest = y.clone().requires_grad_(), y[good].clone().requires_grad_()
    newton = NewtonLoss(case.loss, kind, damping=2.0, matrix_free=matrix_free)
    loss, wanted = (
        newton(leaf, target),
        newton_loss(case.loss, rest, target[good], curvature=kind, damping=2.0),
    )
    assert_close(loss, wanted, 1e-12)
    loss.backward()
    wanted.backward()
    assert leaf.grad[2].abs().sum() == 0
    assert_close(leaf.grad[good], rest.grad, 1e-5 if matrix_free else 1e-10)
    assert int(newton.skipped) == 1


def test_a_bad_second_derivative_alone_is_left_out_of_the_mean() -> None:
    """√|y|³ at zero: value and gradient are finite, the second derivative is not."""
    y = torch.tensor([[0.0], [1.0]])
    found = newton_target(lambda y: y.abs().pow(1.5).sum(1), y, damping=1.0, curvature="hessian")
    assert_close(found.curvature.dense(), torch.tensor([[0.75]]), 1e-6)
    assert found.kept.all()


def test_a_batch_of_bad_samples_only() -> None:
    y = torch.full((3, 2), torch.nan, requires_grad=True)
    newton = NewtonLoss(lambda y: y.square().sum(1), curvature="hessian")
    with pytest.warns(UserWarning, match="all of the last 3 samples were skipped") as told:
        loss = newton(y)
    assert told[0].filename == __file__
    loss.backward()
    newton(y)  # which says it once
    newton.skipped.zero_()
    newton(y)
    assert y.grad.abs().sum() == 0
    assert int(newton.skipped) == 3
    # As 0 it would be the best loss of all, and a network that has diverged the one to keep.
    assert math.isnan(loss.item())
    with torch.no_grad():
        assert math.isnan(newton(y).item())


def test_a_loss_that_learns_is_not_hurt_by_a_batch_of_bad_samples() -> None:
    weight = torch.ones((), requires_grad=True)
    y = torch.full((3, 2), torch.nan, requires_grad=True)
    loss = newton_loss(lambda y: weight + y.sum(1), y, curvature="hessian")
    loss.backward()
    assert math.isnan(loss.item())
    assert (weight.grad, y.grad.abs().sum()) == (0, 0)


def test_a_singular_system_makes_no_step_and_is_counted() -> None:
    y = torch.ones(2, 1, requires_grad=True)
    newton = NewtonLoss(lambda y: -y.square().sum(1), damping=2.0, curvature="hessian")  # H = −2 exactly
    with pytest.warns(UserWarning, match="all of the last 2 samples were skipped"):
        newton(y).backward()
    assert y.grad.abs().sum() == 0
    assert int(newton.skipped) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_sample_costs_the_quadratic_value_no_digits(kind: str) -> None:
    """The number of the others came in a whole number's tensor, of which 1/3 is float32."""
    y, target = Case(ripples, (4, 3)).draw()
    target[3] = torch.nan
    options = {"curvature": kind, "damping": 2.0, "value": "quadratic"}
    found, wanted = (newton_loss(ripples, y[:n], target[:n], **options) for n in (4, 3))
    assert_close(found, wanted, 1e-14)


META = torch.zeros(4, 3, device="meta", requires_grad=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nested tensors are a prototype
    STRIDED, JAGGED = (
        torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        for layout in (torch.strided, torch.jagged)
    )


@pytest.mark.parametrize("y", [META, STRIDED, JAGGED], ids=["meta", "strided", "jagged"])
@pytest.mark.parametrize(
    "call",
    [
        newton_target, expand, check_loss, diagnose, newton_loss,
        *(lambda loss, y, kind=kind: NewtonLoss(loss, kind, check=False)(y) for kind in (*KINDS, "sample")),
    ],
)  # fmt: skip
def test_outputs_without_values_or_a_shape_are_refused_in_a_sentence(call: Any, y: Tensor) -> None:
    def squares(y: Tensor) -> Tensor:
        return y.square().sum(1)

    if y is JAGGED and (call is newton_loss or call.__name__ == "<lambda>"):
        assert torch.isfinite(call(squares, y))  # padded, and with a mask
        return
    with pytest.raises(ArgumentError, match=r"on the meta device|nested tensor"):
        call(squares, y)


def test_a_model_on_the_meta_device_keeps_its_shapes() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), InjectFisher())
    model(META).sum().backward()
    assert META.grad.shape == (4, 3)
    with pytest.raises(ArgumentError, match="nested tensor"):
        inject_fisher(STRIDED)
    on_host = model.to_empty(device="cpu")
    with pytest.warns(UserWarning, match="all of the last 2 samples"):
        (on_host(torch.ones(2, 3)).sum(1) * torch.nan).mean().backward()
    newton = NewtonLoss(lambda y: y.square().sum(1), check=False)
    with pytest.raises(ArgumentError):
        newton(META)
    newton(torch.ones(2, 3, requires_grad=True)).backward()
    assert int(newton.skipped) == 0


def centred(y: Tensor, target: Tensor) -> Tensor:
    return (y - y.mean(0) - target).square().sum(1)


def test_a_batch_of_two_after_one_of_one_is_still_checked() -> None:
    newton, (y, target) = NewtonLoss(centred), Case(ripples, (3, 3)).draw()
    newton(y[:1], target[:1])
    with pytest.raises(SeparabilityError):
        newton(y[:2], target[:2])


def test_what_was_compiled_unchecked_is_checked_by_hand_or_by_the_first_eager_call() -> None:
    torch._dynamo.reset()
    newton, (y, target) = NewtonLoss(centred, "fisher"), Case(ripples, (4, 3)).draw()
    torch.compile(newton, backend="eager", fullgraph=True)(y, target)
    with pytest.raises(SeparabilityError):
        newton(y, target)
    with pytest.raises(SeparabilityError):
        check_loss(centred, y, target)


def test_the_quadratic_value_is_the_same_without_gradients() -> None:
    y, target = Case(ripples, (4, 3)).draw()
    wanted = newton_loss(ripples, y, target, value="quadratic")
    with torch.no_grad():
        assert_close(newton_loss(ripples, y, target, value="quadratic"), wanted, 0)
        assert_close(NewtonLoss(ripples, value="quadratic")(y, target), wanted, 0)


def test_a_first_batch_of_one_sample_is_checked_for_what_it_can_tell() -> None:
    with pytest.raises(DerivativeError, match="does not depend on the outputs"):
        NewtonLoss(lambda y: y.detach().square().sum(1), "fisher")(torch.ones(1, 3, requires_grad=True))
