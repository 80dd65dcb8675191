"""What fuzzing found once, each as the smallest call that showed it."""

import numpy as np
import pytest
import torch

import newton_losses as nl
from cases import assert_close


@pytest.mark.parametrize("thing", [None, 1.5, "text", [1.0]])
def test_a_module_called_with_something_that_is_no_tensor(thing: object) -> None:
    with pytest.raises(nl.ArgumentError, match="have to be a tensor"):
        nl.NewtonLoss(lambda y: y.square().sum(1), curvature="hessian")(thing)


def test_a_fisher_many_orders_above_the_damping_where_there_are_fewer_samples_than_outputs() -> None:
    """g − g·‖g‖²/(‖g‖² + λ) has no digit left at ‖g‖² = 1e20, and divided by λ was anything at all."""
    y = torch.full((1, 3), 1e10, dtype=torch.float64)
    found = nl.newton_target(lambda y: y.square().sum(1) / 2, y, curvature="fisher", damping=1e-3)
    assert_close(found.step, y / (3e20 + 1e-3), 1e-12)
    leaf = y.clone().requires_grad_()
    nl.inject_fisher(leaf, 1e-3).backward(y)
    assert_close(leaf.grad, y / (3e20 + 1e-3), 1e-12)


def test_the_value_is_there_where_the_system_has_no_solution() -> None:
    """It was 0 in training and 16 in evaluation."""
    y = torch.full((2, 1), 4.0, requires_grad=True)
    newton = nl.NewtonLoss(lambda y: -y.square().sum(1), damping=2.0, curvature="hessian")  # H = −2 exactly
    with pytest.warns(UserWarning, match="samples were skipped"):
        assert_close(newton(y), torch.tensor(-16.0), 0)
    with torch.no_grad():
        assert_close(newton(y), torch.tensor(-16.0), 0)


def test_an_infinite_output_at_which_the_loss_is_finite() -> None:
    y = torch.tensor([[torch.inf], [0.0]], requires_grad=True)
    loss = nl.newton_loss(lambda y: y.sigmoid().sum(1), y, damping=1.0, curvature="hessian")
    loss.backward()
    assert loss.item() == 0.75
    assert torch.isfinite(y.grad).all()


@pytest.mark.parametrize("damping", [torch.tensor(-1.0), torch.tensor(torch.inf), torch.tensor(torch.nan)])
def test_a_damping_in_a_tensor_that_is_not_positive_and_finite(damping: torch.Tensor) -> None:
    """Nothing may wait for the device to look at it: no sample moves, and all are counted."""
    y = torch.ones(3, 2, requires_grad=True)
    newton = nl.NewtonLoss(lambda y: y.square().sum(1), damping=damping, curvature="hessian")
    with pytest.warns(UserWarning, match="samples were skipped"):
        newton(y).backward()
    assert not y.grad.any()
    assert int(newton.skipped) == 3


@pytest.mark.parametrize("rule", [lambda _: 0.0, lambda _: -1, lambda _: "small", lambda _: None])
def test_a_rule_that_gives_no_damping(rule) -> None:
    with pytest.raises(nl.ArgumentError, match="damping"):
        nl.newton_loss(lambda y: y.square().sum(1), torch.ones(3, 2), damping=rule, curvature="hessian")


def test_relative_damping_beyond_the_range_makes_no_step() -> None:
    """The mean square of the curvature overflows: λ was infinite and the step silently zero."""
    found = nl.newton_target(
        lambda y: 1e200 * y.square().sum(1),
        torch.ones(1, 1).double(),
        damping=nl.RelativeDamping(),
        curvature="hessian",
    )
    assert not found.kept.any()


def test_vmap_over_a_newton_loss_alone() -> None:
    """`vmap(grad(...))` went through, `vmap` by itself did not."""
    y = torch.ones(4, 3, 2)
    values = torch.func.vmap(lambda y: nl.newton_loss(lambda y: y.square().sum(1), y, curvature="hessian"))(y)
    assert_close(values, torch.full((4,), 2.0), 1e-6)


@pytest.mark.parametrize("name", ["softsort", "neuralsort", "logistic"])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3)])
def test_an_empty_batch_of_scores(name: str, shape: tuple[int, ...]) -> None:
    scores = torch.zeros(shape, requires_grad=True)
    assert nl.sorting.soft_sort(scores, name).shape == shape
    loss = nl.sorting.SortingLoss(name)(scores, torch.zeros(shape))
    assert loss.shape == shape[:-1]
    loss.sum().backward()
    assert scores.grad.shape == shape


@pytest.mark.parametrize("thing", [None, [1.0, 2.0], "text", torch.ones(2, dtype=torch.complex64), torch.ones(2, 0)])
def test_what_are_no_scores(thing: object) -> None:
    sorting = nl.sorting
    for call in (
        sorting.neuralsort,
        sorting.SortingNetwork(2).matrix,
        lambda scores: sorting.SortingLoss("softsort")(scores, scores),
        lambda scores: sorting.SpearmanLoss()(scores, scores),
        lambda scores: sorting.exact_match(scores, scores),
    ):
        with pytest.raises(nl.ArgumentError):
            call(thing)


@pytest.mark.parametrize("labels", [torch.tensor([2]), torch.tensor([-1]), torch.tensor([0.0])])
def test_labels_that_are_no_items(labels: torch.Tensor) -> None:
    with pytest.raises(nl.ArgumentError, match="labels"):
        nl.sorting.TopKLoss(1)(torch.zeros(1, 2), labels)


@pytest.mark.parametrize("thing", [None, [1.0, 2.0], "text"])
def test_what_are_no_maps(thing: object) -> None:
    paths = nl.paths
    for call in (paths.shortest_path, paths.RelaxedBellmanFord(), lambda costs: paths.path_cost(costs, costs)):
        with pytest.raises(nl.ArgumentError, match="have to be a tensor"):
            call(thing)
    with pytest.raises(nl.ArgumentError, match="start"):
        paths.shortest_path(torch.ones(2, 2), start="a corner")


def test_quasi_random_noise_for_no_outputs() -> None:
    loss = nl.smoothing.SmoothedLoss(lambda y: y.sum(1), quasi=True)
    assert loss(torch.zeros(3, 0)).shape == (3,)


@pytest.mark.parametrize("rule", [nl.NormalizedDamping, nl.RelativeDamping])
@pytest.mark.parametrize("factor", ["2", None, True, [1.0], 1j, 0, float("nan"), torch.ones(2), np.ones(2)])
def test_a_factor_that_is_no_positive_number(rule, factor) -> None:
    with pytest.raises(nl.ArgumentError, match=f"The factor of {rule.__name__} has to be a positive"):
        rule(factor)


def test_the_class_of_a_rule_instead_of_a_rule() -> None:
    """It is callable, and was called with the expansion as its factor."""
    with pytest.raises(nl.ArgumentError, match="The damping is the class NormalizedDamping"):
        nl.newton_loss(
            lambda y: y.square().sum(1),
            torch.ones(3, 2, requires_grad=True),
            damping=nl.NormalizedDamping,
            curvature="hessian",
        )


@pytest.mark.parametrize("option", ["curvature", "spectrum", "reduction", "value"])
def test_an_array_where_a_word_belongs(option: str) -> None:
    """Comparing it with the words gave an array, whose truth is ambiguous."""
    y = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(nl.ArgumentError, match=f"{option}="):
        nl.newton_loss(lambda y: y.square().sum(1), y, **{option: np.ones(3)})


@pytest.mark.parametrize(
    "options",
    [{"reduction": "average"}, {"reduction": None}, {"loss_scale": 0.0}, {"loss_scale": None}, {"loss_scale": "1"},
     {"loss_scale": torch.ones(2)}],
)  # fmt: skip
def test_an_injected_fisher_refuses_before_the_backward_pass(options) -> None:
    """The module took any reduction for a sum."""
    (option,) = options
    with pytest.raises(nl.ArgumentError, match=f"{option}="):
        nl.inject_fisher(torch.ones(3, 2), **options)
    with pytest.raises(nl.ArgumentError, match=f"{option}="):
        nl.InjectFisher(**options)
