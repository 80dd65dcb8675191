"""The device of a run: which one a name stands for, being on it, how exact it is, and telling that it is full."""

import contextlib
import re
from collections.abc import Iterator

import torch

from newton_losses.errors import ArgumentError, NewtonLossesError

from .settings import check_choice

# Memory that torch does not hand out itself: of graphs, kernels and handles, and the libraries' own. Each library has a
# status of its own, as in CUBLAS_STATUS_ALLOC_FAILED and CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED.
_FULL = re.compile(
    r"CUDA\b.*\bout of memory|CUDA_ERROR_OUT_OF_MEMORY|\bCU[A-Z]+_(?:\w+_)?ALLOC(?:ATION)?_FAILED"
    # torch on a CPU, on Linux and elsewhere
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
)


def on_device(name: str) -> contextlib.AbstractContextManager[object]:
    """A context in which `name` is the device of everything that is not told one; nothing on a CPU.

    Graphs, streams, events and the handles of libraries belong to torch's current CUDA device, wherever the tensors
    lie. The loop enters this once around all of its runs: nothing beneath it has to name a device for these.

    >>> with on_device("cpu"):
    ...     torch.zeros(()).device
    device(type='cpu')
    """
    return torch.cuda.device(name) if device_kind(name) == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def precision_flags(precision: str) -> Iterator[None]:
    """float32 means float32: torch would use TF32 in convolutions by itself. Put back afterwards."""
    allow = precision != "float32"
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    # The head of a bf16 network stays in full float32; only "tf32" changes matrix products.
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allow, precision == "tf32"
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before[:2]
        torch.backends.cudnn.benchmark = before[2]


def device_kind(name: str) -> str:
    """A device without its number.

    >>> device_kind("cuda:1"), device_kind("cpu")
    ('cuda', 'cpu')
    """
    return name.partition(":")[0]


def resolve_device(name: str) -> str:
    """The device that a name stands for; "auto" is CUDA where there is one.

    >>> resolve_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_choice("device", device_kind(name), ("auto", "cpu", "cuda"))
    number = name.partition(":")[2]
    if ":" in name and not (name.startswith("cuda") and number.isdecimal()):
        raise ArgumentError(f"--device {name}: a device is cpu, cuda, or cuda with a number, as in cuda:1.")
    if name != "cpu" and not torch.cuda.is_available():
        raise ArgumentError(f"--device {name}: torch finds no CUDA device here. Use --device cpu, or auto.")
    if number and int(number) >= (there := torch.cuda.device_count()):
        found = "one CUDA device here, cuda:0" if there == 1 else f"{there} CUDA devices here, up to cuda:{there - 1}"
        raise ArgumentError(f"--device {name}: torch finds {found}.")
    return f"cuda:{int(number)}" if number else name


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left, whoever asked for it: torch, CUDA, or one of its libraries.

    An error that such a one has led to counts as well: the end of a capture that was broken off raises another.

    >>> is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    True
    """
    # A sentence of our own says what to do already.
    if not isinstance(error, RuntimeError) or isinstance(error, NewtonLossesError):
        return False
    if isinstance(error, torch.OutOfMemoryError) or _FULL.search(str(error)):
        return True
    earlier = error.__cause__ or error.__context__
    return earlier is not None and is_out_of_memory(earlier)
