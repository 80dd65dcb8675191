"""The one place that enters a run's device, the device's name, and what tells that its memory is full."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import small_runs

from newton_losses.errors import ArgumentError
from newton_losses_bench import train
from newton_losses_bench.machine import environment, is_out_of_memory, on_device, resolve_device
from newton_losses_bench.store import RunError, RunFolder
from newton_losses_bench.sweep.jobs import Job, as_begun
from newton_losses_bench.sweep.processes import LocalPool
from newton_losses_bench.train import make_task, run

CONFIG = small_runs(steps=4, eval_every=2, epochs=2)["sorting"]


# Being there


def test_a_cpu_needs_no_entering():
    assert isinstance(on_device("cpu"), contextlib.nullcontext)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_cuda_device_is_entered(name, monkeypatch):
    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or contextlib.nullcontext())
    with on_device(name):
        assert entered == [name]


def test_all_of_a_run_happens_on_its_device(tmp_path, monkeypatch):
    """From making the task to the last evaluation, and nothing after it."""
    inside, seen = [], []

    @contextlib.contextmanager
    def entering(name):
        inside.append(name)
        yield
        inside.clear()

    def make(config):
        task = make_task(config)
        begin, evaluate = task.begin_step, task.evaluate
        seen.append(list(inside))
        task.begin_step = lambda step: seen.append(list(inside)) or begin(step)
        task.evaluate = lambda tell: seen.append(list(inside)) or evaluate(tell)
        return task

    monkeypatch.setattr(train, "on_device", entering)
    run(CONFIG, str(tmp_path), make=make)
    assert seen == [["cpu"]] * 7
    assert inside == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
def test_a_run_on_a_second_device_leaves_the_first_alone(tmp_path):
    config = replace(CONFIG, device="cuda:1", graph=True, precision="bf16", augment=False)
    before = torch.cuda.memory_allocated(0), torch.cuda.max_memory_allocated(0)
    found = run(config, str(tmp_path / "second"))
    assert (torch.cuda.memory_allocated(0), torch.cuda.max_memory_allocated(0)) == before
    assert torch.cuda.current_device() == 0
    first = run(replace(config, device="cuda:0"), str(tmp_path / "first"))
    assert found["final"]["loss"] == pytest.approx(first["final"]["loss"], rel=1e-2)


# Its name


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", "cpu"])
def test_devices_that_are_there(name, two_devices):
    assert resolve_device(name) == name


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("cuda:2", "--device cuda:2: torch finds 2 CUDA devices here, up to cuda:1."),
        ("cuda:one", "--device cuda:one: a device is cpu, cuda, or cuda with a number, as in cuda:1."),
        ("cuda:", "--device cuda:: a device is"),
        ("cuda:-1", "--device cuda:-1: a device is"),
        ("cpu:1", "--device cpu:1: a device is"),
    ],
)
def test_devices_that_are_not(name, answer, two_devices):
    with pytest.raises(ArgumentError) as caught:
        resolve_device(name)
    assert str(caught.value).startswith(answer)


@pytest.mark.parametrize(
    ("device", "visible"), [("cuda", ["0", "1", "0"]), ("auto", ["0", "1", "0"]), ("cuda:1", [None] * 3)]
)
def test_a_sweep_spreads_over_devices_unless_one_is_named(device, visible, two_devices, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = Job.of("a run", CONFIG.resolved(), Path("results"), device)
    pool = LocalPool(3, Path("logs"))
    assert [pool._environment(job, slot).get("CUDA_VISIBLE_DEVICES") for slot in range(3)] == visible


@pytest.mark.parametrize(("begun", "today", "agree"), [("cuda:1", "cuda:0", True), ("cuda", "cpu", False)])
def test_a_run_may_go_on_on_a_device_of_another_number(begun, today, agree, tmp_path):
    """The number is no setting of the experiment, as the kind is: that decides on the random numbers."""
    config = CONFIG.resolved()
    with RunFolder(str(tmp_path / "run"), replace(config, device=begun)) as folder:
        folder.save({"step": 1})
    again = RunFolder(str(tmp_path / "run"), replace(config, device=today))
    with contextlib.nullcontext() if agree else pytest.raises(RunError, match="--device: cuda there, cpu here"), again:
        pass


def test_a_job_resumes_on_the_device_of_today(tmp_path):
    config = CONFIG.resolved()
    with RunFolder(str(tmp_path / "run"), replace(config, device="cuda:1", graph=True)):
        pass
    assert as_begun(replace(config, device="cuda:0"), tmp_path / "run") == (
        replace(config, device="cuda:0", graph=True), False
    )  # fmt: skip


# Its memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    ],
)
def test_a_full_device_is_recognised(error):
    assert is_out_of_memory(error)


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch raises a RuntimeError")
def test_a_full_device_is_recognised_in_an_error_of_its_own_type():
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))


def test_a_full_cpu_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**17, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_the_end_of_a_capture_hides_what_ended_it():
    """Its error says only that there was another, in whose handling it was raised."""
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert not is_out_of_memory(error)
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory.")
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("out of memory verses"),
        ValueError("CUDA error: out of memory"),
        RunError("The disk is full."),
    ],
)
def test_other_errors_are_not_a_full_device(error):
    assert not is_out_of_memory(error)


def test_a_sentence_of_our_own_stays_as_it_is():
    error = RunError("Something that says what to do.")
    error.__cause__ = torch.OutOfMemoryError()
    assert not is_out_of_memory(error)


def test_the_command_of_an_environment_can_be_pasted(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["newton-losses", "train", "sorting", "--out", "my runs/a*"])
    assert environment()["command"] == "train sorting --out 'my runs/a*'"
