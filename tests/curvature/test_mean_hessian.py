"""The mean of Hessians: as kernels on a GPU, and in few operations of torch's vmap.

The tests marked `gpu` run on CUDA, and, but for those that need a device, in Triton's interpreter on the CPU too.
"""

import subprocess
import sys

import pytest
import torch

from newton_losses import NewtonLoss, newton_loss
from newton_losses.curvature import expand
from on_cuda import capture
from operators import Operators
from triton_interpreter import DEVICE, on_cuda_alone, run_interpreted


@pytest.mark.slow
def test_in_the_interpreter():
    run_interpreted(__file__)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("samples", "outputs"), [(1, 1), (5, 3), (70, 10), (33, 17), (3, 130), (128, 100)])
def test_samples_that_are_not_finite_take_no_part(samples, outputs, dtype):
    from newton_losses.curvature._mean_hessian_triton import mean_of_finite_hessians

    torch.manual_seed(outputs)
    second = torch.randn(outputs, samples, outputs, dtype=dtype)
    value, gradient = torch.randn(samples, dtype=dtype), torch.randn(samples, outputs, dtype=dtype)
    if samples > 4:  # each of the last four has one number that is not finite
        second[-1, -1, 0] = second[0, -2, -1] = torch.nan
        value[-3], gradient[-4, -1] = torch.inf, -torch.inf
    matrix, count = mean_of_finite_hessians(second.to(DEVICE), value.to(DEVICE), gradient.to(DEVICE))
    usable = second[:, : samples - 4 if samples > 4 else samples].double()
    assert count.item() == usable.shape[1]
    expected = (usable.mean(1) + usable.mean(1).mT) / 2
    torch.testing.assert_close(matrix.cpu().double(), expected, rtol=1e-6, atol=torch.finfo(dtype).eps)
    assert torch.equal(matrix, matrix.mT)


def logistic(y, target):
    return torch.nn.functional.softplus(target * (y[:, :, None] - y[:, None, :]).flatten(1)).mean(1)


def logistic_batch(samples, outputs, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(samples, outputs, dtype=dtype, generator=generator)
    return y, torch.randn(samples, outputs**2, dtype=dtype, generator=generator).sign()


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.parametrize("outputs", [3, 40])
def test_a_captured_and_an_eager_hessian_are_the_cpus(outputs):
    y, target = logistic_batch(20, outputs)
    y[3] = torch.nan
    expected = NewtonLoss(logistic, "hessian", 0.1)
    leaf = y.clone().requires_grad_()
    expected(leaf, target).backward()
    newton, on_cuda, cuda_target = NewtonLoss(logistic, "hessian", 0.1), y.cuda().requires_grad_(), target.cuda()

    def step():
        on_cuda.grad = None
        newton(on_cuda, cuda_target).backward()

    step()
    torch.testing.assert_close(on_cuda.grad.cpu(), leaf.grad)
    graph, _ = capture(step)
    on_cuda.grad.zero_()
    graph.replay()
    torch.testing.assert_close(on_cuda.grad.cpu(), leaf.grad)
    assert newton.skipped >= 2


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_a_kernel_is_launched_as_the_tensors_lie():
    """What was compiled for gradients on a boundary of 16 bytes is not used for others, nor for another dtype."""
    from newton_losses.curvature._fisher_triton import launch_fisher

    torch.manual_seed(0)
    numbers = torch.randn(1 + 12 * 5, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        stored = numbers.to(DEVICE, dtype)
        for offset in (0, 1, 0):
            gradient = stored[offset : offset + 60].view(12, 5)
            rows = launch_fisher(gradient, None, None, 0.5, 0.0, False, False, None)[0]
            own = numbers[offset : offset + 60].view(12, 5)
            expected = torch.linalg.solve(own.mT @ own / 12 + 0.5 * torch.eye(5, dtype=own.dtype), own.mT).mT
            torch.testing.assert_close(rows.cpu().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("samples", "outputs"), [(12, 5), (70, 80)])  # by elimination, and by iteration
def test_a_kernel_multiplies_its_step_by_the_unit(samples, outputs):
    from newton_losses.curvature._fisher_triton import launch_fisher

    gradient = torch.randn(samples, outputs, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    given = gradient, None, None, 0.0, 1.0, True, True, None
    plain, scaled = (launch_fisher(*given, unit=unit)[0] for unit in (None, torch.tensor(2.5).to(DEVICE)))
    torch.testing.assert_close(scaled, 2.5 * plain)


def operators_of_a_hessian(outputs):
    y, target = logistic_batch(4, outputs)
    expand(logistic, y, target, curvature="hessian")
    with Operators() as operators:
        expand(logistic, y, target, curvature="hessian")
    return operators.count


def test_softplus_takes_all_directions_at_once():
    """Its second derivative has an operator in it that torch's vmap has no rule for."""
    assert operators_of_a_hessian(3) == operators_of_a_hessian(9)


def test_two_threads_give_the_rule_once():
    code = """if True:
        import threading, warnings
        import torch
        from newton_losses.curvature import expand
        warnings.simplefilter("error")
        loss = lambda y: torch.nn.functional.softplus(y).sum(1)
        threads = [threading.Thread(target=expand, args=(loss, torch.ones(2, 3)), kwargs={"curvature": "hessian"})
                   for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_rule_changes_no_number():
    y, target = logistic_batch(4, 3)
    found = expand(logistic, y, target, curvature="hessian").curvature.dense()
    expected = (
        sum(
            torch.autograd.functional.hessian(lambda z, n=n: logistic(z[None], target[n : n + 1])[0], y[n])
            for n in range(4)
        )
        / 4
    )
    torch.testing.assert_close(found, expected)


def test_values_in_16_bits_and_infinite_ones_are_looked_at_as_well() -> None:
    y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    wanted = y.detach().pow(3).mul(4)
    newton_loss(lambda y: y.pow(4).sum(1).bfloat16(), y, curvature="hessian", damping=1e6).backward()
    assert y.grad is not None
    torch.testing.assert_close(y.grad * 8e6, wanted, rtol=2e-2, atol=1e-2)

    def infinite_first(y: torch.Tensor) -> torch.Tensor:
        return y.pow(4).sum(1) + torch.tensor([torch.inf, *[0.0] * 7])

    found, others = (
        expand(loss, at.detach()).curvature.dense()
        for loss, at in ((infinite_first, y), (lambda y: y.pow(4).sum(1), y[1:]))
    )
    torch.testing.assert_close(found, others)


@pytest.mark.parametrize("count", [16, 17])
def test_a_loss_that_keeps_numbers_is_called_once(count):
    """How much memory it takes is looked at where N·m² is above 4096, by a call that leaves no trace."""

    class Averaged(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.zeros(()))

        def forward(self, y):
            with torch.no_grad():
                self.scale = 0.9 * self.scale + 0.1 * y.square().mean()
            return y.pow(4).sum(1) * self.scale

    loss = Averaged()
    NewtonLoss(loss, "hessian", check=False)(torch.ones(count, 16, requires_grad=True))
    torch.testing.assert_close(loss.scale, torch.tensor(0.1))
