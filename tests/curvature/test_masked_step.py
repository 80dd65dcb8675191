"""A masked step against its definition, and the short form of it on a CPU against the operators of other devices."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from newton_losses import NewtonLoss, NormalizedDamping
from newton_losses.curvature import Expansion, _host_lists, _ordinary
from newton_losses.curvature._host_lists import masked_rows
from newton_losses.curvature._lists import masked_fisher
from newton_losses.curvature._step import _by_operators
from triton_interpreter import on_cuda_alone


def coupled(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Of the outputs that exist; its Hessian has eigenvalues of both signs."""
    wide = torch.where(mask, y - target, 0.0)
    return wide.sin().square().sum(1) + 0.3 * (wide.sum(1) - wide.square().sum(1)).cos()


def masks(kind: str, count: int, size: int, generator: torch.Generator) -> Tensor:
    if kind == "ragged":
        return torch.arange(size) < torch.randint(0, size + 1, (count, 1), generator=generator)
    if kind == "whole":
        return torch.ones(count, size, dtype=torch.bool)
    return torch.rand(count, size, generator=generator) < 0.6


def replace_masked_rows(monkeypatch: pytest.MonkeyPatch, by: Any) -> None:
    for user in (_host_lists, _ordinary):
        monkeypatch.setattr(user, "masked_rows", by)


def steps(newton: NewtonLoss, kind: str, shape: tuple[int, int], scale: float = 1.0) -> list[Tensor]:
    found = []
    for batch in range(4):
        generator = torch.Generator().manual_seed(batch)
        y, target = (scale * torch.randn(2, *shape, generator=generator)).unbind()
        y.requires_grad_()
        mask = masks(kind, *shape, generator)
        value = newton(y, target, mask=mask)
        value.backward()
        assert y.grad is not None
        assert (y.grad[~mask] == 0).all()
        found += [value.detach(), y.grad]
    return found


@pytest.mark.parametrize("shape", [(1, 3), (9, 4), (40, 12), (6, 20)], ids=str)
@pytest.mark.parametrize("kind", ["ragged", "random", "whole"])
@pytest.mark.parametrize(
    ("curvature", "damping", "spectrum"),
    [
        ("fisher", "auto", None),
        ("fisher", 0.1, None),
        ("fisher", NormalizedDamping(0.3), "clip"),
        ("hessian", "auto", None),
        ("hessian", 0.5, "absolute"),
        ("hessian", 0.5, "clip"),
    ],
)
def test_it_is_that_of_the_operators(
    monkeypatch: pytest.MonkeyPatch, curvature: Any, damping: Any, spectrum: Any, kind: str, shape: tuple[int, int]
) -> None:
    options: dict[str, Any] = {"spectrum": spectrum, "check": False, "on_nonfinite": "ignore"}
    short, long = (NewtonLoss(coupled, curvature, damping, **options) for _ in range(2))
    taken = []
    replace_masked_rows(monkeypatch, lambda *given: taken.append(masked_rows(*given)) or taken[-1])
    found = steps(short, kind, shape)
    assert sum(one is not None for one in taken) >= 2  # not the first batch of a run, nor one without outputs
    replace_masked_rows(monkeypatch, lambda *_: None)
    for one, other in zip(found, steps(long, kind, shape), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6 * float(other.abs().max()))
    if short.running_square is not None:
        torch.testing.assert_close(short.running_square, long.running_square)


@pytest.mark.parametrize(("curvature", "taken"), [("fisher", 2), ("hessian", 0)])
def test_long_padded_lists_take_one_factorisation(monkeypatch: pytest.MonkeyPatch, curvature: Any, taken: int) -> None:
    """Of lists for which one system each would be too much; a Hessian with negative eigenvalues needs those."""
    found: list[Any] = []
    replace_masked_rows(monkeypatch, lambda *given: found.append(masked_rows(*given)) or found[-1])
    options: dict[str, Any] = {"check": False, "on_nonfinite": "ignore"}
    short = NewtonLoss(coupled, curvature, **options)
    shorts = [steps(short, "ragged", (48, 80)), short.running_square]
    assert sum(one is not None for one in found) >= taken
    assert taken or all(one is None for one in found)
    replace_masked_rows(monkeypatch, lambda *_: None)
    long = NewtonLoss(coupled, curvature, **options)
    torch.testing.assert_close(shorts, [steps(long, "ragged", (48, 80)), long.running_square], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_sample_that_is_left_out_is_none_of_its_business(bad: float) -> None:
    newton = NewtonLoss(coupled, check=False, on_nonfinite="ignore")
    steps(newton, "ragged", (8, 3))
    y, target = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.arange(3) < torch.tensor([[3, 2, 1, 0, 3, 3, 2, 2]]).T
    target = target.detach()
    target[1, 0] = bad
    y = y.detach().requires_grad_()
    newton(y, target, mask=mask).backward()
    assert newton.skipped == 1
    assert y.grad is not None
    assert (y.grad[1] == 0).all()
    assert (y.grad[0] != 0).all()


def test_a_sample_without_a_finite_hessian_is_solved_with_that_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(y: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return coupled(y, target, mask) + torch.where(mask, y.abs().pow(1.5), 0.0).sum(1)

    found = []
    for is_short in (True, False):
        if not is_short:
            replace_masked_rows(monkeypatch, lambda *_: None)
        newton = NewtonLoss(loss, "hessian", check=False, on_nonfinite="ignore")
        for batch in range(3):
            y = torch.randn(8, 3, generator=torch.Generator().manual_seed(batch))
            y[2, 0] = 0.0  # where the slope of |y|^1.5 is zero, and its curvature infinite
            mask = torch.arange(3) < torch.tensor([[3, 2, 1, 1, 3, 3, 2, 2]]).T
            y.requires_grad_()
            newton(y, torch.ones(8, 3), mask=mask).backward()
        found.append(y.grad)
        assert newton.running_square is not None
        found.append(newton.running_square)
    torch.testing.assert_close(found[:2], found[2:], rtol=2e-5, atol=1e-6)


def test_a_mask_that_came_transposed() -> None:
    """Of more than eight outputs, so that a list's bits are more than one byte."""
    mask = (torch.rand(12, 6, generator=torch.Generator().manual_seed(0)) < 0.7).T
    y, target = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(1))
    found = []
    for given in (mask, mask.contiguous()):
        newton, own = NewtonLoss(coupled, check=False), y.clone().requires_grad_()
        for _ in range(2):
            own.grad = None
            newton(own, target, mask=given).backward()
        found.append(own.grad)
    torch.testing.assert_close(*found)


def test_the_fisher_of_pairs_is_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient, mask = torch.randn(9, 4, generator=generator, dtype=torch.float64), masks("random", 9, 4, generator)
    value = torch.zeros(9, dtype=torch.float64)
    gradient[3], value[5] = torch.inf, torch.nan
    gradient = torch.where(mask, gradient, 0.0)
    good = [n for n in range(9) if n not in (3, 5)]
    assert mask[3].any()
    found = masked_fisher(gradient, value, mask)
    assert "matrix" not in vars(found)
    for j, k in itertools.product(range(4), repeat=2):
        seen = [sum(bool(mask[n, one]) for n in good) for one in (j, k)]
        wanted = sum(gradient[n, j] * gradient[n, k] for n in good) / math.sqrt(max(1, seen[0]) * max(1, seen[1]))
        torch.testing.assert_close(found.matrix[j, k], wanted)
        assert found.pairs[j, k] == sum(bool(mask[n, j] and mask[n, k]) for n in good)
    with pytest.raises(AttributeError, match="beyond"):
        found.beyond  # noqa: B018


def test_a_damping_that_is_lost_beside_the_fisher_leaves_samples_out() -> None:
    """Three of four outputs exist, with gradients along one line: what λ is to tell apart is rounding."""
    gradient = torch.tensor([[1e9, 1e9, 1e9, 0.0]], dtype=torch.float64).repeat(3, 1)
    mask, value = gradient > 0, torch.zeros(3, dtype=torch.float64)
    expansion = Expansion(value, gradient, masked_fisher(gradient, value, mask))
    assert not _by_operators(expansion, 1e-12, "raw", True).kept.any()
    newton = NewtonLoss(lambda y, t, mask: torch.where(mask, 1e9 * y, 0.0).sum(1), damping=1e-12, on_nonfinite="ignore")
    newton(torch.zeros(3, 4, requires_grad=True, dtype=torch.float64), value, mask=mask).backward()
    assert newton.skipped == 3


@pytest.mark.gpu
@on_cuda_alone
@pytest.mark.parametrize("curvature", ["fisher", "hessian", "sample"])
@pytest.mark.parametrize("size", [6, 100])
def test_on_a_gpu_steps_are_the_cpus_and_can_be_captured(curvature: Any, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(2, 12, size, generator=generator)
    mask = masks("random", 12, size, generator)
    found = []
    for device in ("cpu", "cuda"):
        newton = NewtonLoss(coupled, curvature, check=False).to(device)
        given = [one.to(device) for one in (y, target, mask)]

        def step(newton: NewtonLoss = newton, given: list[Tensor] = given) -> Tensor:
            leaf = given[0].clone().requires_grad_()
            newton(leaf, given[1], mask=given[2]).backward()
            assert leaf.grad is not None
            return leaf.grad

        for _ in range(3):
            last = step()
        found.append(last.cpu())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step()
    graph.replay()
    torch.testing.assert_close(replayed.cpu(), found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("curvature", ["fisher", "sample"])
def test_few_samples_stretch_the_default_as_the_operators_do(curvature: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer samples than outputs, and fewer that have an output than samples that have any."""
    generator = torch.Generator().manual_seed(0)
    y, target = torch.randn(2, 4, 9, generator=generator, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[2], [3], [9], [4]])
    mask = torch.stack([row[torch.randperm(9, generator=generator)] for row in mask])
    mask[3] = False
    found = []
    for hosted in (True, False):
        with monkeypatch.context() as patch:
            if not hosted:
                patch.setattr("newton_losses.newton.host_step", lambda *given, **named: None)
                patch.setattr("newton_losses.curvature._step.host_step", lambda *given, **named: None)
            newton = NewtonLoss(coupled, curvature, check=False)
            for scale in (1.0, 2.0):
                own = (scale * y).requires_grad_()
                newton(own, target, mask=mask).backward()
            found.append(own.grad)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1.0, 1.1, 1.3)])
def test_a_singular_part_is_solved_for_as_exactly_as_by_operators(scales: tuple[float, ...]) -> None:
    """Of few gradients in different units an inverse would lose twice the digits that a factorisation loses."""
    worst = 0.0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        count = 1 + seed % 3
        units = torch.logspace(0, -6, 5, dtype=torch.float64)[torch.randperm(5, generator=generator)]
        rows = torch.randn(count, 5, generator=generator, dtype=torch.float64) * units * scales[seed % 3]
        mask = torch.rand(count, 5, generator=generator) < 0.8
        rows = torch.where(mask, rows, 0.0)
        steps = []
        for damping in (1e-8, lambda expansion: 1e-8):  # a rule of one's own goes by operators
            y = torch.zeros(count, 5, dtype=torch.float64, requires_grad=True)
            NewtonLoss(lambda y, rows=rows: (y * rows).sum(1), damping=damping, check=False)(y, mask=mask).backward()
            steps.append(y.grad)
        found, wanted = steps
        worst = max(worst, float(((found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp(min=1e-30)).max()))
    assert worst < 1e-7  # 2.8e-4 by an inverse


def test_a_sample_without_a_value_enters_no_curvature_of_shortened_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    y, rows = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 4, generator=generator) < 0.7
    found = []
    for broken in (torch.nan, 0.0):
        newton = NewtonLoss(lambda y, rows, bad: (y * rows).sum(1) + bad, check=False, on_nonfinite="ignore")
        for size in (1.0, 100.0):  # the second batch is beyond the limit, and its gradients are shortened
            own, bad = y.clone().requires_grad_(), torch.zeros(6, dtype=torch.float64)
            bad[2] = broken
            kept = torch.ones(6, dtype=torch.bool)
            kept[2] = False
            given = size * rows
            if broken == 0.0:  # the same without it
                newton(own[kept], given[kept], bad[kept], mask=mask[kept]).backward()
            else:
                newton(own, given, bad, mask=mask).backward()
        found.append(own.grad)
    torch.testing.assert_close(*found)
