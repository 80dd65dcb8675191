"""The relaxed Bellman-Ford algorithm: against algovision, against its own plain form, and its derivatives."""

import path_maps
import pytest
import torch

from newton_losses.errors import ArgumentError, ShapeError
from newton_losses.paths import PathLoss, RelaxedBellmanFord, solve

pytestmark = [
    # algovision 0.1.2 indexes with lists, which torch warns about.
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning"),
    # torch's own forward mode still scripts its formulas when it is first used.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

algovision_path = pytest.importorskip("algovision_program", exc_type=ImportError).algovision_path


@pytest.mark.parametrize("conorm", ["probabilistic", "yager"])
@pytest.mark.parametrize("loop", ["for", "while"])
@pytest.mark.parametrize(
    ("kind", "shape", "iterations"),
    [("uniform", (12, 12), 18), ("terrain", (12, 12), 18), ("tied", (12, 12), 30), ("clamped", (9, 7), 18)],
)
def test_values_and_gradients_equal_algovisions(kind, shape, iterations, loop, conorm):
    costs = path_maps.make_maps(kind, 8, *shape, seed=1).double().requires_grad_()
    label = solve(costs).path
    ours, theirs = (
        RelaxedBellmanFord(10.0, iterations, loop, conorm),
        algovision_path(10.0, iterations, loop, conorm),
    )
    expected = theirs(costs)
    path = ours(costs)
    # Both in float64; what is left is the weights below exp(−72) that ours drops.
    torch.testing.assert_close(path, expected, rtol=0.0, atol=1e-10)
    for norm, cell in (("l1", torch.abs), ("l2", torch.square)):
        loss = PathLoss(ours, norm)(costs, label)
        wanted = cell(expected - label).sum((1, 2))
        torch.testing.assert_close(loss, wanted, rtol=0.0, atol=1e-9)
        gradient = torch.autograd.grad(loss.sum(), costs)[0]
        torch.testing.assert_close(
            gradient, torch.autograd.grad(wanted.sum(), costs, retain_graph=True)[0], rtol=1e-7, atol=1e-8
        )


@pytest.mark.parametrize("loop", ["for", "while"])
def test_float32_is_as_exact_as_algovisions(loop):
    costs = path_maps.make_maps("uniform", 70, 12, 12, seed=2)
    ours, theirs = RelaxedBellmanFord(10.0, 18, loop), algovision_path(10.0, 18, loop)
    exact = theirs(costs.double())
    torch.testing.assert_close(ours(costs), theirs(costs), rtol=0.0, atol=1e-5)
    assert (ours(costs) - exact).abs().max() <= (theirs(costs) - exact).abs().max()


@pytest.mark.parametrize("loop", ["for", "while"])
@pytest.mark.parametrize("shape", [(3, 4), (1, 3), (4, 1), (2, 2)])
def test_derivatives_of_both_orders_in_both_modes(shape, loop):
    costs = torch.rand(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    costs.requires_grad_()
    algorithm = RelaxedBellmanFord(2.0, 4, loop)
    assert torch.autograd.gradcheck(algorithm, costs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(algorithm, costs, check_fwd_over_rev=True)


@pytest.mark.parametrize("conorm", ["probabilistic", "yager"])
@pytest.mark.parametrize("loop", ["for", "while"])
def test_the_hand_written_gradient_equals_the_plain_forms(loop, conorm):
    """torch.func goes through the plain form, autograd through the one written by hand."""
    costs = path_maps.make_maps("uniform", 5, 6, 7, seed=3).double()
    algorithm = RelaxedBellmanFord(60.0, 9, loop, conorm)
    plain, pullback = torch.func.vjp(algorithm, costs)
    leaf = costs.requires_grad_()
    path = algorithm(leaf)
    torch.testing.assert_close(path, plain, rtol=1e-13, atol=1e-15)
    gradient = torch.rand(path.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.autograd.grad(path, leaf, gradient)[0], pullback(gradient)[0])


def test_a_gradient_that_is_cut_off_behind_it_stays_so():
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    costs = torch.rand(1, 2, 3, requires_grad=True)
    cut = Cut.apply(RelaxedBellmanFord(2.0, 3)(costs)).sum()
    assert torch.autograd.grad(cut, costs, allow_unused=True, retain_graph=True) == (None,)
    (gradient,) = torch.autograd.grad(cut + costs.sum(), costs)
    assert torch.equal(gradient, torch.ones_like(costs))


def test_hessian_by_forward_over_reverse_under_vmap():
    label = torch.eye(4, dtype=torch.float64)[None]
    loss = PathLoss(RelaxedBellmanFord(3.0, 6, "while"), "l2")
    costs = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def value(c):
        return loss(c[None], label)[0]

    forward_over_reverse = torch.func.hessian(value)(costs)
    reverse_over_reverse = torch.autograd.functional.hessian(value, costs)
    torch.testing.assert_close(forward_over_reverse, reverse_over_reverse)
    # All rows of second derivatives in one batched backward.
    batched = torch.autograd.functional.hessian(value, costs, vectorize=True)
    torch.testing.assert_close(batched, reverse_over_reverse)
    torch.testing.assert_close(forward_over_reverse, forward_over_reverse.permute(2, 3, 0, 1))
    step = 1e-5 * torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient = torch.func.grad(value)
    difference = gradient(costs + step) - gradient(costs - step)
    torch.testing.assert_close((forward_over_reverse * 2 * step).sum((2, 3)), difference, rtol=1e-6, atol=1e-11)


def test_float32_second_derivatives_meet_no_1e12():
    costs = (5 * path_maps.make_maps("terrain", 2, 12, 12, seed=4)).requires_grad_()
    loss = PathLoss(RelaxedBellmanFord(10.0, 18), "l2")(costs, torch.zeros(2, 12, 12)).sum()
    (gradient,) = torch.autograd.grad(loss, costs, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), costs)
    assert gradient.isfinite().all()
    assert second.isfinite().all()


def test_a_large_beta_gives_the_shortest_path():
    costs = 0.1 + path_maps.make_maps("uniform", 40, 8, 9, seed=5).double()
    best = solve(costs)
    path = RelaxedBellmanFord(beta=1e5, iterations=30)(costs)
    # Predecessors go on from the start, to the neighbour from which the start would be reached best.
    on_path = best.path == 1
    assert (path[on_path] > 0.999).all()
    assert (path[~on_path].round() == 0).float().mean() > 0.97


def test_samples_do_not_mix():
    costs = path_maps.make_maps("uniform", 3, 6, 6, seed=6)
    algorithm = RelaxedBellmanFord()
    for index in range(3):
        assert torch.equal(algorithm(costs[index : index + 1])[0], algorithm(costs)[index])
    assert algorithm(costs[:0]).shape == (0, 6, 6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype):
    costs = path_maps.make_maps("uniform", 3, 6, 6, seed=7).to(dtype).requires_grad_()
    path = RelaxedBellmanFord()(costs)
    assert path.dtype == torch.float32
    assert torch.equal(path, RelaxedBellmanFord()(costs.float()))
    path.sum().backward()
    assert costs.grad.dtype == dtype


@pytest.mark.parametrize("loop", ["for", "while"])
def test_compiles_in_one_graph(loop):
    costs = path_maps.make_maps("uniform", 3, 5, 5, seed=8)
    loss = PathLoss(RelaxedBellmanFord(5.0, 6, loop), "l2")
    label = solve(costs).path

    def gradient(function):
        leaf = costs.clone().requires_grad_()
        return torch.autograd.grad(function(leaf, label).sum(), leaf)[0]

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(costs, label), loss(costs, label))
    torch.testing.assert_close(gradient(compiled), gradient(loss), rtol=1e-4, atol=1e-5)


def test_arguments_are_explained():
    for arguments, words in [
        ({"beta": 0.0}, "beta=0.0 is not a positive finite"),
        ({"beta": float("inf")}, "beta=inf is not a positive finite"),
        ({"iterations": 0}, "iterations is 0"),
        ({"loop": "until"}, "loop='until' is not known"),
        ({"conorm": "max"}, "conorm='max' is not known"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            RelaxedBellmanFord(**arguments)
    with pytest.raises(ShapeError, match=r"shape \(12, 12\)"):
        RelaxedBellmanFord()(torch.ones(12, 12))
    with pytest.raises(ArgumentError, match="norm='l3' is not known"):
        PathLoss(RelaxedBellmanFord(), "l3")
    with pytest.raises(ShapeError, match=r"label has shape \(3, 3\)"):
        PathLoss(RelaxedBellmanFord())(torch.ones(1, 3, 3), torch.ones(3, 3))


def test_the_losses_sum_the_cells_of_each_sample():
    label = torch.zeros(2, 3, 3)
    halves = torch.full((2, 3, 3), 0.5)
    assert PathLoss(lambda costs: costs, "l1")(halves, label).tolist() == [4.5, 4.5]
    assert PathLoss(lambda costs: costs, "l2")(halves, label).tolist() == [2.25, 2.25]


def test_iterations_that_reach_no_start_are_warned_of_once():
    algorithm = RelaxedBellmanFord()
    with pytest.warns(UserWarning, match=r"RelaxedBellmanFord: on grids of 4 rows and 30.*at least 30.*iterations=18"):
        algorithm(torch.rand(2, 4, 30))
    algorithm(torch.rand(2, 4, 30))
    RelaxedBellmanFord(iterations=30)(torch.rand(2, 4, 30))
