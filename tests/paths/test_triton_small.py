"""The kernel with a program a map against the CPU's back end, bit by bit.

The tests marked `gpu` run on CUDA, and in Triton's interpreter on the CPU too: `test_in_the_interpreter` starts them
so in a process of their own, because Triton decides when it is imported.
"""

import path_maps
import pytest
import torch

from newton_losses.paths import solve
from newton_losses.paths._dispatch import solver
from triton_interpreter import DEVICE, run_interpreted


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


@pytest.mark.gpu
@pytest.mark.parametrize("neighbors", [4, 8])
@pytest.mark.parametrize("kind", path_maps.KINDS)
def test_same_bits_as_on_the_cpu(kind, neighbors):
    for height, width, start, goal in [
        (1, 1, 0, 0),
        (1, 9, 0, 8),
        (9, 1, 8, 0),
        (2, 2, 1, 2),
        (5, 7, 3, 3),
        (12, 12, 0, 143),
        (17, 10, 160, 35),
    ]:
        costs = path_maps.make_maps(kind, 4, height, width, seed=1)
        costs[-1, 0, 0] = float("nan")
        ends = (divmod(start, width), divmod(goal, width))
        expected = solve(costs, neighbors, *ends, strict=False)
        for dtype in (torch.float32, torch.float64):
            found = solver("triton", height * width)(costs.to(DEVICE, dtype), neighbors, start, goal)
            path, cost, unique, reachable = (tensor.cpu() for tensor in found)
            assert torch.equal(cost.view(torch.int64), expected.cost.view(torch.int64)), (height, width)
            assert torch.equal(path.to(costs.dtype), expected.path), (height, width)
            assert torch.equal(unique, expected.unique), (height, width)
            assert torch.equal(reachable, expected.reachable), (height, width)


@pytest.mark.gpu
def test_maps_that_do_not_lie_one_after_another():
    costs = path_maps.make_maps("uniform", 6, 8, 8, seed=2)
    expected = solve(costs[::2].mT)
    path, *_ = solver("triton", 64)(costs.to(DEVICE)[::2].mT, 8, 0, 63)
    assert torch.equal(path.cpu().to(costs.dtype), expected.path)


@pytest.mark.gpu
def test_the_kernel_follows_the_size():
    from newton_losses.paths import _triton_large, _triton_small

    assert solver("triton", 1024) is _triton_small.solve
    assert solver("triton", 1025) is _triton_large.solve
