"""The floors of `benchmarks/step_kernels.py`, which itself needs a GPU, against the tensors that kernels are given."""

import importlib
from pathlib import Path

import pytest
import torch

from newton_losses_bench.kernels import digit_layers_hopper as hopper

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("step_kernels").parts


def size(*tensors):
    return sum(tensor.nbytes for tensor in tensors)


def test_on_hopper_bytes_are_those_of_what_the_layers_read_and_write(parts):
    count = 3
    pictures = torch.empty((count, 28, 112), dtype=torch.uint8, device="meta")
    pixels, codes_1 = hopper._first_results(pictures)
    pooled, codes_2 = hopper._second_results(pixels)
    # Gradients are as large as what they are the gradients of.
    first, second = size(pictures, pixels, codes_1), size(pixels, pooled, codes_2)
    found = {part.title: part.bytes for part in parts(count, hopper=True)}
    layers = {title: number for title, number in found.items() if title.startswith("layer")}
    assert layers == {
        "layer 1, forward": first,
        "layer 1, backward": first,
        "layer 2, forward": second,
        "layer 2, by weight": second,
        "layer 2, by input": second,
    }
    assert not any("pooling" in title for title in found)


def test_elsewhere_the_convolution_writes_what_the_pooling_reads(parts):
    convolved, pooled = 2 * 64 * 14 * 56, 3 * 64 * 7 * 28
    found = {part.title: part.bytes for part in parts(1, hopper=False)}
    assert found["convolution 2, forward"] == 2 * 32 * 14 * 56 + convolved
    assert found["pooling 2, forward"] == found["pooling 2, backward"] == convolved + pooled
