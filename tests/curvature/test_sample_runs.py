"""`curvature="sample"` over a run of batches, in the unit that it keeps: by its formula, and with bad samples."""

import math

import pytest
import torch
from torch import Tensor

import newton_losses as nl
from operators import Operators


def closed_form_of_a_run(batches: list[Tensor], damping: float | nl.RunningDamping) -> list[Tensor]:
    """The steps over N, batch after batch in float64, where none is beyond the limit of the run."""
    steps, total, weight = [], 0.0, 0.0
    for gradient in batches:
        gradient = gradient.double()
        count, size = gradient.shape
        square = float(gradient.square().mean())
        total, weight = 0.999 * total + 0.001 * square, 0.999 * weight + 0.001
        own = gradient.square().sum(1) / count
        number, length = damping, 1.0
        if isinstance(damping, nl.RunningDamping):
            number = damping.factor * float((own.square().sum() / min(count, size)).sqrt())
            length = number / math.sqrt(total / weight)
        steps.append(length * gradient / (number + own)[:, None] / count)
    return steps


@pytest.mark.parametrize("damping", [nl.RunningDamping(), nl.RunningDamping(0.01), 0.3], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 20), (20, 5), (513, 513)], ids=str)
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=["32", "64"])
def test_a_run_by_its_formula(
    dtype: torch.dtype, digits: float, shape: tuple[int, int], damping: float | nl.RunningDamping
) -> None:
    """On the short way and on the long one, which a large batch and one in float64 go."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(4, *shape, generator=generator, dtype=torch.float64)
    batches = list((torch.tensor([1.0, 1.0, 1.5, 0.5])[:, None, None] * (uniform + 0.5)).to(dtype))
    newton = nl.NewtonLoss(lambda y, gradient: (y * gradient).sum(1), "sample", damping, check=False)
    for gradient, wanted in zip(batches, closed_form_of_a_run(batches, damping), strict=True):
        y = torch.zeros(shape, dtype=dtype, requires_grad=True)
        newton(y, gradient).backward()
        # A few roundings, of which none is of a difference.
        torch.testing.assert_close(y.grad.double(), wanted, rtol=digits, atol=digits * float(wanted.abs().max()))


@pytest.mark.parametrize("damping", [nl.RunningDamping(), nl.RunningDamping(0.01), 0.3], ids=str)
@pytest.mark.parametrize("shape", [(1, 3), (3, 9), (20, 5)], ids=str)
def test_a_run_of_ragged_lists_by_its_formula(shape: tuple[int, int], damping: float | nl.RunningDamping) -> None:
    """N are the lists that have items, m is how many they have on average; and the mean is over all of them."""
    generator = torch.Generator().manual_seed(0)
    newton = nl.NewtonLoss(lambda y, gradient: (y * gradient).sum(1), "sample", damping, check=False)
    total = weight = 0.0
    for scale in (1.0, 1.0, 1.1, 0.5):
        mask = torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)
        mask[-1] &= shape[0] == 1  # a list without items
        wide = torch.where(mask, scale * (torch.rand(shape, generator=generator).double() + 0.5), 0.0).float().double()
        lists, outputs = int(mask.any(1).sum()), int(mask.sum())
        total, weight = 0.999 * total + 0.001 * float(wide.square().sum()) / outputs, 0.999 * weight + 0.001
        own = wide.square().sum(1) / lists
        number, length = damping, 1.0
        if isinstance(damping, nl.RunningDamping):
            size = outputs / lists
            number = damping.factor * math.sqrt(float(own.square().sum()) * lists / outputs * size / min(lists, size))
            length = number / math.sqrt(total / weight)
        y = torch.zeros(shape, requires_grad=True)
        with Operators(views=False) as operators:
            newton(y, wide.float(), mask=mask).backward()
        wanted = length * wide / (number + own)[:, None] / shape[0]
        torch.testing.assert_close(y.grad.double(), wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))
    assert operators.count <= 40  # 250 on the long way


@pytest.mark.parametrize("shape", [(6, 4), (2**10, 2**9)], ids=str)
def test_one_sample_that_explodes_stays_within_its_bound(shape: tuple[int, int]) -> None:
    """Ten times a batch's usual energy is what it counts for, and it makes ρ² at most twice as large."""
    gradient = torch.ones(shape)
    newton = nl.NewtonLoss(lambda y, gradient: (y * gradient).sum(1), "sample", check=False)
    found = []
    for factor in (1.0, 1.0, 1e6, 1.0):
        batch = gradient.clone()
        batch[0] *= factor
        y = torch.zeros(shape, requires_grad=True)
        newton(y, batch).backward()
        found.append(y.grad)
    assert float(found[2].norm()) <= math.sqrt(10) * float(gradient.norm()) / shape[0]
    # ρ² was 1, 1 and 2: with another 1 it is the mean of four, since a thousandth of their weight is hardly forgotten.
    torch.testing.assert_close(found[3] * math.sqrt(7 / 4), found[1], rtol=0.001, atol=0)


class _Sloped(torch.autograd.Function):
    """Values of zero with any gradient, also an infinite one."""

    @staticmethod
    def forward(ctx, y: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return y.new_zeros(len(y))

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, None]:
        return slope[:, None] * ctx.gradient, None


@pytest.mark.parametrize("damping", ["auto", 0.3])
@pytest.mark.parametrize("bad", ["value", "gradient", "overflow"])
def test_a_bad_sample_amid_a_run_takes_no_part(bad: str, damping: float | str) -> None:
    """Its value alone may be bad, or its gradient alone, or only the square of that. It is the last of a batch."""
    gradient, values = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(8)
    spoiled, spoiled_values = gradient.clone(), values.clone()
    if bad == "value":
        spoiled_values[7] = math.nan
    else:
        spoiled[7] = 1e30 if bad == "overflow" else math.inf

    def loss(y: Tensor, gradient: Tensor, value: Tensor) -> Tensor:
        return _Sloped.apply(y, gradient) + value

    def last_step(*last: Tensor) -> tuple[Tensor, int]:
        newton = nl.NewtonLoss(loss, "sample", damping, check=False, on_nonfinite="ignore")
        for given in ((gradient, values), (gradient, values), last):
            y = torch.zeros_like(given[0], requires_grad=True)
            newton(y, *given).backward()
        return y.grad, int(newton.skipped)

    found, skipped = last_step(spoiled, spoiled_values)
    assert found.isfinite().all()
    if bad == "overflow":  # such a sample counts, but no more than it may
        assert skipped == 0
        assert found.abs().amax(1).all()
    else:
        assert skipped == 1
        assert not found[7].any()
        torch.testing.assert_close(found[:7], last_step(gradient[:7], values[:7])[0], rtol=1e-6, atol=0)
