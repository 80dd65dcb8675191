"""The kernel of `_block_step.py` as a library of the host, and what its tests compare it with."""

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from newton_losses.curvature import NormalizedDamping
from newton_losses.curvature import _block_step as block_step
from newton_losses.curvature._fisher import Solved

HERE = Path(__file__).parent
KERNELS = Path(block_step.__file__).parent
# What a GPU would refuse, and an x86 does not: a pair of numbers at an odd place.
CHECKED = ["-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"]


class Emulated:
    """The kernel as a library of the host, in the place of `Kernels`; its threads take turns from either end."""

    def __init__(self, folder: Path, size: int, dtype: torch.dtype) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("no C++ compiler")
        library = folder / f"block_step_{size}_{dtype}.so"
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-I", KERNELS, *CHECKED]
        defined = [f"-DSIZE={size}", f"-DNUMBER={block_step.TYPES[dtype]}"]
        subprocess.run([*command, *defined, HERE / "emulated_block_step.cpp", "-o", library], check=True)
        self.library = ctypes.CDLL(str(library))
        self.backwards = False

    def launch_struct(self, name: str, blocks: int, threads: int, shared: int, given: bytes) -> None:
        self.backwards = not self.backwards
        used = self.library.run_block_step(blocks, int(self.backwards), given)
        assert used >= 0, "threads wait for each other"
        assert used <= shared

    @property
    def barriers(self) -> int:
        """How often all threads of the last block have waited for each other."""
        return self.library.barriers()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def brute_force(gradient: Tensor, damping: object, matrix: Tensor | None = None) -> Tensor:
    """By the formula, in float64."""
    gradient = gradient.double()
    curvature = gradient.mT @ gradient / len(gradient) if matrix is None else matrix.double()
    number = damping
    if not isinstance(damping, (float, Tensor)):
        number = damping.factor * float(curvature.norm()) / math.sqrt(len(curvature))
    damped = curvature + number * torch.eye(len(curvature), dtype=torch.float64)
    solved = torch.linalg.solve(damped, gradient.mT).mT
    return solved * number / gradient.square().mean().sqrt() if isinstance(damping, NormalizedDamping) else solved


def assert_step(found: Solved, wanted: Tensor, tolerance: float = 1e-10) -> None:
    if found.rows.dtype == torch.float32:
        tolerance = 1e-6
    close = {"rtol": tolerance, "atol": tolerance * float(wanted.abs().max())}
    torch.testing.assert_close(found.rows.double(), wanted, **close)
    assert found.kept.all()
    assert int(found.count) == len(wanted)


def indefinite(size: int) -> Tensor:
    """Symmetric, with zeros on its diagonal: not to be eliminated without an exchange of rows."""
    matrix = normal(size, size)
    return (matrix + matrix.mT).fill_diagonal_(-0.1 if size > 1 else 2.0)
