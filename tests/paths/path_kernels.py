"""What runs on a CUDA device, for tests and benchmarks of paths."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def kernels_of(function: Callable[[], object]) -> list[str]:
    """The names of the kernels that one call launches, after one to warm up; the driver's copies do not count."""
    function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        function()
        torch.cuda.synchronize()
    names = [event.name for event in recorded.events() if event.device_type == DeviceType.CUDA]
    return [name for name in names if not name.startswith(("Memcpy", "Memset"))]
