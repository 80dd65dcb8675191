"""Batch normalisation by the statistics of a batch that several ranks share, on any device.

torch's `SyncBatchNorm` does this on GPUs alone, and a run has to be the same on all of them.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def share_statistics(model: nn.Module, ranks: Ranks) -> nn.Module:
    """`model` with every `BatchNorm2d` in it normalising by the whole batch of all ranks. Names stay the same."""
    if ranks.group is None:
        return model
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, SharedBatchNorm2d(child, ranks.group))
        else:
            share_statistics(child, ranks)
    return model


class SharedBatchNorm2d(nn.BatchNorm2d):
    """`inner`, a `BatchNorm2d`, over the samples of all ranks of a group; in evaluation the same as `inner`.

        y = (x − μ) / √(σ² + ε) · weight + bias,   μ and σ² over the samples and pixels of all ranks

    Ranks may have different numbers of samples, or none. One collective forward, one backward.
    """

    def __init__(self, inner: nn.BatchNorm2d, group: "ProcessGroup") -> None:
        super().__init__(inner.num_features, inner.eps, inner.momentum)
        self.load_state_dict(inner.state_dict())
        self.to(inner.weight.device, inner.weight.dtype)
        self.group = group
        # Here and not as a decorator: that imports the compiler, for which every start of the command would wait.
        self._normalise = torch.compiler.disable(_by_whole_batch)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._normalise(self, x)) if self.training else super().forward(x)

    @torch.no_grad()
    def remember(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


def _by_whole_batch(module: SharedBatchNorm2d, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        count, mean, variance = _whole_statistics(x.detach(), module.group)
        module.remember(count, mean, variance)
        normalised: Tensor = _Normalise.apply(x, mean, variance + module.eps, count, module.group)  # type: ignore[no-untyped-call]
        scaled = normalised * module.weight[:, None, None] + module.bias[:, None, None]
    return scaled.to(x.dtype)


def _whole_statistics(x: Tensor, group: "ProcessGroup") -> tuple[Tensor, Tensor, Tensor]:
    """How many values a channel has on all ranks, their mean and their variance, in float64.

    From the ranks' own means and sums of squares about these, so that a large mean costs no digits.
    """
    values = x.double().transpose(0, 1).flatten(1)
    count = values.new_full((len(values),), values.shape[1])
    mean = values.sum(1) / count.clamp(min=1)
    squares = (values - mean[:, None]).square().sum(1)
    own = torch.stack([count, mean, squares])
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    counts, means, all_squares = torch.stack(parts, dim=1)
    total = counts.sum(0)
    whole = (counts * means).sum(0) / total
    squares = (all_squares + counts * (means - whole).square()).sum(0)
    return total, whole, squares / total


class _Normalise(torch.autograd.Function):
    """(x − μ)/√v, differentiated through μ and v as functions of all ranks' x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, count: Tensor, group: "ProcessGroup") -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        inverse = variance.rsqrt().to(wide)
        normalised = (x.to(wide) - mean[:, None, None].to(wide)) * inverse[:, None, None]
        ctx.save_for_backward(normalised, inverse, count)
        ctx.group, ctx.dtype = group, x.dtype
        return normalised

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        """∂/∂x = (g − mean g − n · mean(g n)) / √v, with n the normalised x and means over all ranks."""
        normalised, inverse, count = ctx.saved_tensors
        products = outer * normalised
        sums = torch.stack([part.sum((0, 2, 3), dtype=torch.float64) for part in (outer, products)])
        dist.all_reduce(sums, group=ctx.group)
        mean, slope = (sums / count).to(outer.dtype)[:, :, None, None]
        inner = (outer - mean - normalised * slope) * inverse[:, None, None]
        return inner.to(ctx.dtype), None, None, None, None
