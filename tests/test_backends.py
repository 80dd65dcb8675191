"""What keeps an optional package from being used, and how the back ends say so."""

import importlib.util
from functools import partial

import pytest
import torch

from newton_losses._backends import obstacle
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
