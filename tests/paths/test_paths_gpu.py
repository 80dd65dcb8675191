"""Paths on CUDA: the same bits as on the CPU, no waiting for the device, and captured in a graph."""

import path_maps
import pytest
import torch

from newton_losses.errors import ArgumentError
from newton_losses.paths import PathLoss, RelaxedBellmanFord, shortest_path, solve
from on_cuda import capture, no_synchronisation

pytestmark = pytest.mark.gpu

BACKENDS = ("triton", "torch")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("neighbors", [4, 8])
@pytest.mark.parametrize("kind", path_maps.KINDS)
def test_same_bits_as_on_the_cpu(kind, neighbors, backend):
    for height, width, start, goal in [
        (1, 1, None, None),
        (1, 9, None, None),
        (9, 1, None, None),
        (2, 2, None, None),
        (12, 12, None, None),
        (17, 10, (16, 0), (3, 5)),
        (40, 40, None, None),
    ]:
        for count in (1, 33, 100):
            costs = path_maps.make_maps(kind, count, height, width, seed=1)
            costs[-1, 0, 0] = float("nan")
            expected = solve(costs, neighbors, start, goal, strict=False)
            best = solve(costs.cuda(), neighbors, start, goal, backend=backend)
            assert torch.equal(best.cost.cpu().view(torch.int64), expected.cost.view(torch.int64))
            for name in ("path", "unique", "reachable"):
                assert torch.equal(getattr(best, name).cpu(), getattr(expected, name)), (height, width, count)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_waits_for_the_device(backend):
    with no_synchronisation():
        costs = torch.rand(70, 12, 12, device="cuda")
        solve(costs, backend=backend)
        costs.requires_grad_()
        loss = PathLoss(RelaxedBellmanFord(), "l2")(costs, shortest_path(costs, backend=backend))
        loss.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_solving_is_captured_in_a_graph(backend):
    costs = path_maps.make_maps("tied", 50, 12, 12, seed=2).cuda()
    graph, best = capture(lambda: solve(costs, backend=backend))
    for seed in (3, 4):
        fresh = path_maps.make_maps("tied", 50, 12, 12, seed=seed)
        costs.copy_(fresh)
        graph.replay()
        expected = solve(fresh)
        assert torch.equal(best.path.cpu(), expected.path)
        assert torch.equal(best.cost.cpu(), expected.cost)
        assert torch.equal(best.unique.cpu(), expected.unique)


def test_errors_on_request():
    costs = torch.ones(3, 4, 4, device="cuda")
    costs[1, 2] = float("inf")
    assert solve(costs).reachable.tolist() == [True, False, True]
    with pytest.raises(ArgumentError, match=r"in map \(1,\)"):
        solve(costs, strict=True)
    costs[2, 0, 1] = float("nan")
    with pytest.raises(ArgumentError, match=r"NaN at \(2, 0, 1\)"):
        solve(costs, strict=True)


@pytest.mark.parametrize("loop", ["for", "while"])
def test_relaxed_path_and_gradient_equal_the_cpus(loop):
    costs = path_maps.make_maps("uniform", 20, 12, 12, seed=5).double()
    label = solve(costs).path
    loss = PathLoss(RelaxedBellmanFord(10.0, 18, loop), "l1")

    def both(device):
        leaf = costs.to(device).requires_grad_()
        value = loss(leaf, label.to(device))
        return value.cpu().detach(), torch.autograd.grad(value.sum(), leaf)[0].cpu()

    for on_cuda, on_cpu in zip(both("cuda"), both("cpu"), strict=True):
        torch.testing.assert_close(on_cuda, on_cpu, rtol=1e-9, atol=1e-10)


# After a capture the leaf's own node belongs to the stream of the capture; torch warns in the eager call.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_relaxed_path_and_gradient_are_captured_in_a_graph():
    costs = path_maps.make_maps("uniform", 20, 12, 12, seed=6).cuda().requires_grad_()
    algorithm = RelaxedBellmanFord()

    def step():
        path = algorithm(costs)
        return path, torch.autograd.grad(path.square().sum(), costs)[0]

    graph, (path, gradient) = capture(step)
    with torch.no_grad():
        costs.copy_(path_maps.make_maps("uniform", 20, 12, 12, seed=7))
    graph.replay()
    expected_path, expected_gradient = step()
    torch.testing.assert_close(path, expected_path)
    torch.testing.assert_close(gradient, expected_gradient)
