"""What keeps an optional package from being used, and how the back ends say so."""

import importlib.util
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from newton_losses import _backends
from newton_losses._backends import compiling, launch, obstacle, parts_of, power_of_two, takes_triton
from newton_losses.errors import ArgumentError
from newton_losses.paths import RelaxedBellmanFord
from newton_losses.sorting import SortingNetwork


@pytest.fixture(autouse=True)
def triton_is_there(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: object())
    obstacle.cache_clear()
    yield
    obstacle.cache_clear()


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.9.1"])
def test_the_triton_of_an_older_torch(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    for make in (RelaxedBellmanFord, partial(SortingNetwork, 4)):
        with pytest.raises(ArgumentError, match=f"needs torch 2.10 or later, and this is {version[:3]}"):
            make(backend="triton")
    assert obstacle("numba") is None


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "3.0"])
def test_the_triton_of_a_newer_one(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    assert obstacle("triton") is None


def test_other_devices_that_call_themselves_cuda(monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.13.0"))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert obstacle("triton") == "is for NVIDIA's GPUs alone"


def test_without_a_device_of_its_own_triton_steps_aside(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for device in ("cpu", "meta"):
        assert not takes_triton("triton", torch.zeros(2, 3, device=device), 3, 64)
    costs = torch.rand(2, 3, 3)
    assert torch.equal(*(RelaxedBellmanFord(4.0, 3, backend=backend)(costs) for backend in ("triton", "torch")))


@pytest.mark.gpu
def test_triton_is_the_choice_on_cuda():
    on_device = torch.zeros(2, 3, device="cuda")
    assert takes_triton("auto", on_device, 64, 64)
    assert not takes_triton("auto", on_device, 65, 64)
    assert not takes_triton("auto", on_device.cpu(), 64, 64)


def test_triton_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for make in (RelaxedBellmanFord, partial(SortingNetwork, 4)):
        with pytest.raises(ArgumentError, match="pip install triton"):
            make(backend="triton")


class Kernel:
    """What `launch` needs to know of one of Triton's: it is compiled when it is called, and returns what was made."""

    arg_names = ("tensor", "number", "nothing", "SIZE", "KIND")

    def __init__(self):
        self.compiled, self.launched = 0, []

    def __getitem__(self, grid):
        if len(grid) == 3:  # of the compiled one
            return lambda *given: self.launched.append((grid, given))

        def compile_and_launch(*given, SIZE, KIND, num_warps):
            self.compiled += 1
            return self

        return compile_and_launch


def test_a_kernel_is_looked_up_once_for_what_triton_does_not_tell_apart():
    kernel, numbers = Kernel(), torch.zeros(9)

    def run(tensor=numbers, number=5, size=16, kind="raw", warps=4):
        launch(kernel, 3, (tensor, number, None), {"KIND": kind, "SIZE": size}, warps)
        return kernel.compiled

    assert run() == 1
    assert kernel.launched == []
    assert run(number=7) == run(torch.ones(2, 2), 2**30 + 1) == 1
    assert kernel.launched[0] == ((3, 1, 1), (numbers, 7, None, 16, "raw"))  # in the order of the kernel's arguments
    others = [
        {"tensor": numbers[1:]}, {"tensor": numbers.double()}, {"number": 1}, {"number": 32}, {"number": 2**31 + 1},
        {"number": 5.0}, {"size": 32}, {"kind": "clip"}, {"warps": 8},
    ]  # fmt: skip
    assert [run(**other) for other in others] == list(range(2, 2 + len(others)))
    assert [run(**other) for other in others] == [1 + len(others)] * len(others)


def test_sizes_of_blocks():
    assert [parts_of(number, 16) for number in (1, 16, 17, 32)] == [1, 1, 2, 2]
    assert [power_of_two(number) for number in (1, 2, 3, 16, 17)] == [1, 2, 4, 16, 32]


@pytest.mark.parametrize("is_slow", [True, False])
def test_who_waits_for_a_compiler_hears_what_for(is_slow, monkeypatch, caplog):
    monkeypatch.setattr(_backends, "PATIENCE", 0.02 if is_slow else 60.0)
    with compiling("a kernel"):
        time.sleep(0.2)
    assert caplog.messages == (
        ["newton_losses is compiling a kernel for this machine, about ten seconds; numba keeps the result."]
        if is_slow
        else []
    )


FIRST_CALLS = """
import sys, torch, newton_losses as nl
y, target = torch.randn(2, 8, 4).unbind()
y.requires_grad_()
loss = lambda y, target: (y - target).pow(4).sum(1)
for curvature in ("fisher", "sample", "hessian"):
    nl.NewtonLoss(loss, curvature)(y, target).backward()
nl.NewtonLoss(loss)(y, target, mask=torch.ones(8, 4, dtype=torch.bool)).backward()
loss(nl.inject_fisher(y), target).mean().backward()
nl.NewtonLoss(nl.sorting.SortingLoss("logistic"), "hessian")(y, target).backward()
nl.paths.shortest_path(torch.rand(2, 3, 3))
nl.diagnose(loss, y.detach(), target)
print(sorted({"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules)))
"""


def test_a_first_call_imports_no_compiler():
    """Which takes seconds: torch's own `broadcast_shapes` and operators of our own do."""
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
