"""On a CUDA device: no synchronisation, capture in a graph, and the same numbers as on the CPU."""

import pytest
import torch
from torch import Tensor, nn

from cases import Case, assert_close, quartic, ripples
from newton_losses import InjectFisher, NewtonLoss, RelativeDamping, inject_fisher, newton_target
from on_cuda import no_synchronisation

pytestmark = pytest.mark.gpu

WAYS = [
    ("hessian", "raw", 2.0),
    ("hessian", "absolute", 2.0),
    ("hessian", "clip", 2.0),
    ("hessian", "raw", RelativeDamping()),
    ("fisher", "raw", 2.0),
    ("hessian", None, "auto"),
    ("fisher", None, "auto"),
]


@pytest.mark.parametrize(("kind", "spectrum", "damping"), WAYS, ids=str)
@pytest.mark.parametrize("shape", [(7, 3), (3, 7)])
def test_same_numbers_as_on_the_cpu(kind: str, spectrum: str, damping: object, shape: tuple[int, int]) -> None:
    y, target = Case(ripples, shape).draw()
    options = {"curvature": kind, "spectrum": spectrum, "damping": damping}
    wanted = newton_target(ripples, y, target, **options)
    found = newton_target(ripples, y.cuda(), target.cuda(), **options)
    assert_close(found.step.cpu(), wanted.step, 1e-9)
    if kind == "hessian" and spectrum != "raw":
        free = newton_target(ripples, y, target, matrix_free=True, **options)
        found = newton_target(ripples, y.cuda(), target.cuda(), matrix_free=True, **options)
        assert_close(found.step.cpu(), free.step, 1e-8)


@pytest.mark.parametrize(("kind", "spectrum", "damping"), WAYS, ids=str)
@pytest.mark.parametrize("matrix_free", [False, True])
def test_no_synchronisation(kind: str, spectrum: str, damping: object, matrix_free: bool) -> None:
    y, target = (t.float().cuda().requires_grad_() for t in Case(ripples, (7, 3)).draw())
    newton = NewtonLoss(ripples, kind, damping, spectrum=spectrum, matrix_free=matrix_free)
    newton(y, target).backward()  # the first call checks the loss, and may wait
    inject = InjectFisher(damping)
    ripples(inject(y), target).mean().backward()
    with no_synchronisation():
        newton(y, target).backward()
        ripples(inject(y), target).mean().backward()


class Inject(nn.Module):
    """The same call as NewtonLoss, through `InjectFisher`."""

    def __init__(self) -> None:
        super().__init__()
        self.inject = InjectFisher(2.0)

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return ripples(self.inject(y), target).mean()


@pytest.mark.parametrize("way", [*range(len(WAYS)), "inject"])
def test_a_captured_step_equals_an_eager_one(way: int | str) -> None:
    torch.manual_seed(0)
    if way == "inject":
        newton: nn.Module = Inject().cuda()
    else:
        kind, spectrum, damping = WAYS[way]
        newton = NewtonLoss(ripples, kind, damping, spectrum=spectrum)
    network, x, target = nn.Linear(4, 3).cuda(), torch.randn(8, 4).cuda(), torch.zeros(8, 3).cuda()

    def gradient() -> Tensor:
        (out,) = torch.autograd.grad(newton(network(x), target), network.weight)
        return out

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradient()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradient()
    x.copy_(torch.randn(8, 4))
    before = {name: one.clone() for name, one in newton.state_dict().items()}
    graph.replay()
    newton.load_state_dict(before)  # a replay takes the batch into the running unit, as a call does
    assert_close(captured, gradient(), 1e-5)


@pytest.mark.parametrize("kind", ["hessian", "fisher"])
def test_compiles_with_inductor(kind: str) -> None:
    torch._dynamo.reset()
    network, newton = nn.Linear(4, 3).cuda(), NewtonLoss(quartic, kind, damping=2.0)
    x, target = torch.randn(8, 4).cuda(), torch.zeros(8, 3).cuda()

    def step(x: Tensor) -> Tensor:
        return newton(network(x), target)

    (wanted,) = torch.autograd.grad(step(x), network.weight)
    (found,) = torch.autograd.grad(torch.compile(step, fullgraph=True)(x), network.weight)
    assert_close(found, wanted, 1e-4)


def test_half_precision_with_a_grad_scaler() -> None:
    torch.manual_seed(0)
    network, newton = nn.Linear(4, 3).cuda(), NewtonLoss(ripples, damping=5.0, curvature="hessian")
    optimizer, scaler = torch.optim.SGD(network.parameters(), lr=0.01), torch.amp.GradScaler("cuda")
    x, target = torch.randn(8, 4).cuda(), torch.zeros(8, 3).cuda()
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = newton(network(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.isfinite(network.weight).all()


@pytest.mark.parametrize("shape", [(128, 10), (10, 128), (128, 100), (1, 1), (300, 200), (5, 2, 3)], ids=str)
@pytest.mark.parametrize("bad", [False, True])
def test_inject_fisher_with_its_defaults(shape: tuple[int, ...], bad: bool) -> None:
    """The shortest way there, and the long one where it does not fit."""
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if bad:
        gradient[0] = torch.nan
    steps = []
    for device in ("cpu", "cuda"):
        y = torch.zeros(shape, device=device, requires_grad=True)
        inject_fisher(y).backward(gradient.to(device))
        steps.append(y.grad.cpu())
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-6)
