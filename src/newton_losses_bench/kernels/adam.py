"""Adam for a few large tensors on a GPU.

torch's fused Adam gives a large tensor to a dozen blocks of threads, which leaves most of the device idle.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .digit_layers import has_triton

# From this size on, a tensor is worth a kernel launch of its own.
LARGE = 2**18


def make_adam(parameters: list[nn.Parameter], rate: Tensor) -> torch.optim.Adam:
    """An Adam for captured steps: torch's fused one, or `WideAdam` where that is faster."""
    largest = max((parameter.numel() for parameter in parameters), default=0)
    kind = WideAdam if largest >= LARGE and has_triton() else torch.optim.Adam
    return kind(parameters, lr=rate, fused=True, capturable=True)


class WideAdam(torch.optim.Adam):
    """`torch.optim.Adam` with the same state, whose step is one kernel per tensor. For float32 CUDA parameters."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        from .adam_triton import adam_step

        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            for parameter in moved:
                self._make_state(parameter)
            torch._foreach_add_([self.state[p]["step"] for p in moved], 1)
            beta_1, beta_2 = group["betas"]
            for parameter in moved:
                kept = self.state[parameter]
                # The kernel goes through memory, so that all tensors must lie in it in the same order.
                gradient = torch.empty_like(parameter).copy_(parameter.grad) if _differ(parameter) else parameter.grad
                adam_step(
                    parameter, gradient, kept["exp_avg"], kept["exp_avg_sq"], kept["step"], group["lr"],
                    beta_1, beta_2, group["eps"],
                )  # fmt: skip

    def _make_state(self, parameter: nn.Parameter) -> None:
        kept: dict[str, Any] = self.state[parameter]
        if kept:
            return
        kept["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        kept["exp_avg"] = torch.zeros_like(parameter)
        kept["exp_avg_sq"] = torch.zeros_like(parameter)


def _differ(parameter: nn.Parameter) -> bool:
    assert parameter.grad is not None
    return parameter.stride() != parameter.grad.stride() and not (
        parameter.is_contiguous() and parameter.grad.is_contiguous()
    )
