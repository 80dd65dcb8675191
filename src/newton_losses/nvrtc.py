"""Kernels in CUDA C: compiled at first use, for the GPU that is there, by the compiler that comes with torch (NVRTC).

For what triton does not express, shared memory above all. Nothing is compiled at install, and no toolkit is needed. A
tool for this project's own kernels, here and in the laboratory; not a part of the library's interface.
"""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import ArgumentError, NewtonLossesError

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaError(NewtonLossesError, RuntimeError):
    """The compiler or the driver refused something; the message is theirs."""


@cache
def compiler() -> ctypes.CDLL | None:
    """NVRTC, where torch brought it or the system has it, and it can be loaded."""
    if torch.version.cuda is None:
        return None
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    try:
        for path in (path for folder in folders for path in sorted(folder.glob(f"*/lib/{name}"))):
            for part in path.parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(part))  # which the compiler looks for by its name, and then finds
            return ctypes.CDLL(str(path))
        return ctypes.CDLL(name)
    except OSError:
        return None


@cache
def compiled(files: tuple[Path, ...], architecture: str, defined: tuple[str, ...] = ()) -> bytes:
    """The files, one after another, as one program in machine code; `defined` are macros, each "NAME=value"."""
    library = compiler()
    if library is None:
        raise CudaError("CUDA C cannot be compiled here: NVRTC, the compiler that comes with torch, was not found.")
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    name = files[-1].name
    program = ctypes.c_void_p()
    _compiler_says(
        library, library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    )
    given = [f"--gpu-architecture={architecture}", *(f"--define-macro={one}" for one in defined)]
    options = (ctypes.c_char_p * len(given))(*(one.encode() for one in given))
    failed = library.nvrtcCompileProgram(program, len(options), options)
    if failed:
        log = _read(library, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        library.nvrtcDestroyProgram(ctypes.byref(program))
        raise CudaError(f"{name} could not be compiled for {architecture}: {log}")
    machine_code = _read(library, "CUBIN", program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return machine_code


def _read(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _compiler_says(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _compiler_says(library, getattr(library, f"nvrtcGet{what}")(program, text))
    return text.raw


def _compiler_says(library: ctypes.CDLL, code: int) -> None:
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CudaError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}.")


class Kernels:
    """The kernels of some files on one GPU. Compiled and loaded when it is made; `launch` starts one."""

    def __init__(self, device: int, *files: Path, architecture: str, defined: tuple[str, ...] = ()) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._launch = self._driver.cuLaunchKernel
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._module = ctypes.c_void_p()
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._granted: dict[str, int] = {}
        self.device = torch.device("cuda", device)
        self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        machine_code = compiled(files, architecture, defined)
        with torch.cuda.device(device):
            torch.empty(1, device="cuda")  # the driver's context is there from here on
            self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), machine_code))

    def launch(self, name: str, blocks: int, threads: int, shared: int, *arguments: Tensor | int) -> None:
        """Start a kernel on the current stream; tensors are on this GPU and contiguous, whole numbers are 32 bits.

        Without a block there is nothing to do, which the driver would call an error.
        """
        for value in arguments:
            if isinstance(value, Tensor) and value.device != self.device:
                raise ArgumentError(f"{name}: tensors have to be on one device, not {self.device} and {value.device}.")
        if blocks == 0:
            return
        values = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, Tensor) else ctypes.c_int(value)
            for value in arguments
        ]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._start(name, blocks, threads, shared, places)

    def launch_struct(self, name: str, blocks: int, threads: int, shared: int, given: bytes) -> None:
        """The same for a kernel with one argument, a struct of these bytes: a launch that takes a few microseconds."""
        self._start(name, blocks, threads, shared, (ctypes.c_char_p * 1)(given))

    def _start(self, name: str, blocks: int, threads: int, shared: int, places: Any) -> None:
        function = self.grant(name, shared)
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        self._check(self._launch(function, blocks, 1, 1, threads, 1, 1, shared, stream, places, None))

    def grant(self, name: str, shared: int) -> ctypes.c_void_p:
        """Let a kernel have this much shared memory from its first launch on; returns its handle."""
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
            self._functions[name] = function
        if shared > self._granted.get(name, 0):  # the last grant counts, also where it is the smaller one
            self._check(self._driver.cuFuncSetAttribute(self._functions[name], MAX_DYNAMIC_SHARED, shared))
            self._granted[name] = shared
        return self._functions[name]

    def _check(self, code: int) -> None:
        if code:
            text: Any = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            reason = (text.value or b"unknown error").decode()
            raise CudaError(f"CUDA's driver: {reason} ({code}).")
