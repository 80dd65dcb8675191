"""What keeps an optional package from being used, and how the back ends say so."""

import importlib.util
from functools import partial

import pytest
import torch

from newton_losses._backends import obstacle, takes_triton
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
