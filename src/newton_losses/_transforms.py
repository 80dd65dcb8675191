"""Whether torch is running operators or only looking at them."""

import torch


def sees_operators() -> bool:
    """Whether a compiler or a transform of torch.func is at work: kernels of one's own would be invisible to it."""
    return torch.compiler.is_compiling() or bool(torch._C._are_functorch_transforms_active())
