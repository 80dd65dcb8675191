"""Skipped samples are counted, and said: training that stands still does not do so without a word."""

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from newton_losses import ArgumentError, InjectFisher, NewtonLoss, NonFiniteError
from newton_losses._skipped import SkipWatch
from operators import Operators

KINDS = ["hessian", "fisher"]


def distance(y: Tensor, target: Tensor) -> Tensor:
    """Without a finite gradient where it is zero."""
    return (y - target).square().sum(1).sqrt()


def squares(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().sum(1)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_batch_without_a_finite_sample_is_said_once(kind: str) -> None:
    newton, target = NewtonLoss(distance, kind), torch.zeros(8, 3)
    newton(leaf(8, 3), target).backward()
    with pytest.warns(UserWarning, match="NewtonLoss: all of the last 8 samples were skipped") as told:
        newton(torch.zeros(8, 3, requires_grad=True), target).backward()
    assert told[0].filename == __file__
    newton(torch.zeros(8, 3, requires_grad=True), target).backward()
    assert int(newton.skipped) == 16


def test_a_scalar_that_one_target_spoils_is_named_as_the_reason() -> None:
    target = torch.zeros(8, 3)
    target[0, 0] = torch.nan
    for options in ({}, {"reduction": "mean"}):
        with pytest.warns(
            UserWarning, match=r"all of the last 8 samples .* returns a scalar.*one value per sample, .*N,"
        ):
            NewtonLoss(lambda y, t: squares(y, t).mean(), **options)(leaf(8, 3), target)
    with pytest.raises(NonFiniteError, match="returns a scalar"):
        NewtonLoss(lambda y, t: squares(y, t).mean(), on_nonfinite="raise")(leaf(8, 3), target)
    with pytest.warns(UserWarning, match="all of the last 8 samples") as told:
        NewtonLoss(squares)(leaf(8, 3), target * torch.nan)
    assert "scalar" not in str(told[0].message)


def test_a_share_is_judged_from_64_samples_on() -> None:
    target = torch.zeros(16, 3)
    target[::2] = torch.nan
    newton = NewtonLoss(squares)
    repeat(lambda: newton(leaf(16, 3), target), 3)
    with pytest.warns(UserWarning, match="32 of the last 64 samples"):
        newton(leaf(16, 3), target)


@pytest.mark.parametrize("build", [lambda: NewtonLoss(squares), InjectFisher])
def test_the_count_belongs_to_a_process_and_is_not_saved(build: Callable[[], nn.Module]) -> None:
    assert "skipped" not in build().state_dict()
    assert "skipped" in dict(build().named_buffers())


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_the_targets_missing_is_said(kind: str) -> None:
    target = torch.zeros(16, 3)
    target[::2] = torch.nan
    newton = NewtonLoss(squares, kind)
    with pytest.warns(UserWarning, match="32 of the last 64 samples"):
        repeat(lambda: newton(leaf(16, 3), target), 4)


def test_outputs_padded_with_minus_infinity_are_said() -> None:
    padded = torch.zeros(8, 4)
    padded[:, 3] = -torch.inf
    newton = NewtonLoss(lambda y: torch.softmax(y, 1).square().sum(1) + y.sum(1), "fisher")
    with pytest.warns(UserWarning, match="all of the last 8 samples"):
        newton(leaf(8, 4) + padded).backward()


def test_a_few_are_counted_and_not_said() -> None:
    target = torch.zeros(16, 3)
    target[:3, 0] = torch.nan
    newton = NewtonLoss(squares, "fisher")
    for seed in range(20):
        newton(leaf(16, 3, seed=seed), target).backward()
    assert int(newton.skipped) == 60


def test_one_bad_batch_among_many_is_only_said_if_it_is_whole() -> None:
    newton = NewtonLoss(squares, curvature="hessian")
    for seed in range(20):
        target = torch.zeros(8, 3)
        if seed == 15:
            target[:4] = torch.inf
        newton(leaf(8, 3, seed=seed), target).backward()
    assert int(newton.skipped) == 4


def test_a_quarter_of_64_samples_is_said_and_one_less_is_not() -> None:
    newton = NewtonLoss(squares, "fisher")
    for bad in (0, 15, 15):  # each judged for itself
        target = torch.zeros(64, 3)
        target[:bad] = torch.nan
        newton(leaf(64, 3), target).backward()
    target[15] = torch.nan
    with pytest.warns(UserWarning, match="16 of the last 64 samples"):
        newton(leaf(64, 3), target).backward()


@pytest.mark.parametrize("kind", KINDS)
def test_raise_is_an_error_at_the_first_and_ignore_only_counts(kind: str) -> None:
    target = torch.zeros(8, 3)
    target[2] = torch.nan
    with pytest.raises(NonFiniteError, match="1 of the last 8 samples") as raised:
        NewtonLoss(squares, kind, on_nonfinite="raise")(leaf(8, 3), target)
    assert isinstance(raised.value, FloatingPointError)
    silent = NewtonLoss(squares, kind, on_nonfinite="ignore")
    silent(leaf(8, 3), torch.full((8, 3), torch.nan)).backward()
    assert int(silent.skipped) == 8
    with pytest.raises(ArgumentError, match="on_nonfinite='shout'"):
        NewtonLoss(squares, kind, on_nonfinite="shout")


def test_inject_fisher_says_it_in_the_backward_pass() -> None:
    bad, y = torch.full((8, 1), torch.nan), leaf(8, 3)
    with pytest.warns(UserWarning, match="InjectFisher: all of the last 8 samples"):
        (InjectFisher()(y) * bad).sum(1).mean().backward()
    with pytest.raises(NonFiniteError, match="InjectFisher"):
        (InjectFisher(on_nonfinite="raise")(y) * bad).sum(1).mean().backward()
    InjectFisher(on_nonfinite="ignore")(y).mul(bad).sum(1).mean().backward()
    # Behind a GradScaler an overflow is part of the search for a scale.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    inject = InjectFisher(loss_scale=scaler)
    scaler.scale((inject(y) * bad).sum(1).mean()).backward()
    assert int(inject.skipped) == 8


def test_transforms_and_compilers_stay_silent_and_count_what_they_can() -> None:
    torch._dynamo.reset()
    newton, bad = NewtonLoss(squares, "fisher"), torch.full((8, 3), torch.nan)
    torch.func.grad(lambda y: newton(y, bad))(leaf(8, 3).detach())
    assert int(newton.skipped) == 0
    compiled = torch.compile(newton, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        compiled(leaf(8, 3), bad).backward()
    assert int(newton.skipped) == 16


def test_what_was_seen_survives_copies_and_files_and_a_counter_set_back() -> None:
    newton = NewtonLoss(squares, "fisher", on_nonfinite="raise")
    y, bad = leaf(8, 3), torch.full((8, 3), torch.nan)
    for one in (copy.deepcopy(newton), pickle.loads(pickle.dumps(newton))):
        one(y, y.detach() + 1).backward()
        with pytest.raises(NonFiniteError):
            one(y, bad)
        one.skipped.zero_()
        one(y, y.detach() + 1).backward()


def test_a_training_run_of_finite_samples_says_nothing() -> None:
    network, newton = nn.Linear(4, 3), NewtonLoss(distance, curvature="hessian")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(100):
            optimizer.zero_grad()
            newton(network(leaf(8, 4, seed=seed)), torch.zeros(8, 3)).backward()
            optimizer.step()
    assert int(newton.skipped) == 0


class OnDevice(Tensor):
    """A number on the host that says that it is on a GPU."""

    device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]


class Arrives:
    """An event on a GPU, which a copy has reached or not."""

    arrived, is_recorded = False, False

    def record(self, stream: object) -> None:
        self.is_recorded = True

    def query(self) -> bool:
        assert self.is_recorded  # of one that was not, torch says that it has arrived
        return Arrives.arrived


def test_on_a_device_a_copy_is_read_once_it_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a GPU: calls 64, 128, … take a copy, and none of them reads one that is on its way."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory, **options: empty(*shape, **options))
    monkeypatch.setattr(torch.cuda, "Event", Arrives)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr("newton_losses._skipped.is_captured", lambda device: False)
    watch, counter = SkipWatch("NewtonLoss", "warn"), torch.zeros((), dtype=torch.int64).as_subclass(OnDevice)

    def calls(number: int, skipped: int) -> None:
        for _ in range(number):
            counter.add_(skipped)
            watch.seen += 8
            watch.look(counter, 8)

    calls(64, 0)
    calls(63, 8)
    calls(1, 8)  # the first copy, of 512 good samples, is still on its way
    Arrives.arrived = True
    calls(64, 8)  # now it is read, and a second one taken after 1,024 bad ones
    with pytest.warns(UserWarning, match="1024 of the last 1024|all of the last 1024 samples"):
        calls(64, 8)
    calls(200, 8)
    strict = SkipWatch("NewtonLoss", "raise")
    strict.seen = 8
    with pytest.raises(NonFiniteError):
        strict.look(counter, 8, wait=True)
    counter.add_(8)
    strict.look(counter, 8, wait=True)  # only the first call waits


@pytest.mark.parametrize("kind", KINDS)
def test_checking_and_watching_run_no_operator_after_the_first_call(kind: str) -> None:
    counts = []
    for action, check in (("ignore", False), ("warn", True), ("raise", True)):
        newton, y = NewtonLoss(squares, kind, on_nonfinite=action, check=check), leaf(8, 3)
        newton(y, torch.zeros(8, 3))
        with Operators() as operators:
            newton(y, torch.zeros(8, 3)).backward()
        counts.append(operators.count)
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_it_is_said_a_while_later_and_nothing_waits(kind: str) -> None:
    newton, target = NewtonLoss(distance, kind).cuda(), torch.zeros(8, 3, device="cuda")
    newton(leaf(8, 3).cuda(), target)  # the first call is checked, and may wait
    y = torch.zeros(8, 3, device="cuda", requires_grad=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            repeat(lambda: newton(y, target), 63)
        assert not told
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        with pytest.warns(UserWarning, match="504 of the last 512 samples"):
            repeat(lambda: newton(y, target), 64)
        repeat(lambda: newton(y, target), 200)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    strict = NewtonLoss(distance, kind, on_nonfinite="raise").cuda()
    strict(leaf(8, 3).cuda(), target)
    with pytest.raises(NonFiniteError):
        repeat(lambda: (strict(y, target), torch.cuda.synchronize()), 200)


def test_a_first_batch_without_a_finite_sample_does_not_count_as_checked() -> None:
    newton, y = NewtonLoss(lambda y, target: (y - target).abs().sum(1), "hessian", 1.0), leaf(5, 3)
    with pytest.warns(UserWarning, match="all of the last 5 samples"):
        newton(y, torch.full((5, 3), torch.nan))
    with pytest.warns(UserWarning, match="the Hessian of the loss <lambda> is zero"):
        newton(y, torch.zeros(5, 3))


def test_a_batch_of_one_bad_sample_is_a_standstill_too() -> None:
    newton = NewtonLoss(squares)
    with pytest.warns(UserWarning, match="the last sample was skipped"):
        newton(leaf(1, 3), torch.full((1, 3), torch.nan))


def test_a_module_that_was_made_on_the_meta_device_counts_from_zero() -> None:
    newton = NewtonLoss(squares, on_nonfinite="ignore").to("meta")
    target = torch.zeros(5, 3)
    target[1] = torch.nan
    newton(leaf(5, 3), target).backward()
    assert newton.skipped.device.type == "cpu"
    assert int(newton.skipped) == 1


def test_a_module_that_is_made_empty_from_the_meta_device_counts_from_zero() -> None:
    with torch.device("meta"):
        newton, inject = NewtonLoss(squares), InjectFisher()
    torch.full((64,), 7, dtype=torch.int64)  # what the memory may hold
    for module in (newton, inject):
        module.to_empty(device="cpu")
        assert int(module.skipped) == 0
        assert module.running_square is not None
        assert (module.running_square == 0).all()
