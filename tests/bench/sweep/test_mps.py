"""The Multi-Process Service of a sweep, with a stand-in for NVIDIA's program that keeps a diary."""

import os
import sys
from pathlib import Path

import pytest

from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Job, Lines, LocalPool, mps, processes, run_sweep
from newton_losses_bench.sweep.mps import MultiProcessService

STUB = (sys.executable, str(Path(__file__).with_name("stub_worker.py")))
# Runs while a file named `control` is in its pipe folder, as NVIDIA's does.
CONTROL = """#!/bin/sh
pipe=${CUDA_MPS_PIPE_DIRECTORY:-$DIARY.default}
case "$1" in
  -d) echo start >> $DIARY; [ -z "$BROKEN" ] || exit 1; mkdir -p $pipe $CUDA_MPS_LOG_DIRECTORY; touch $pipe/control ;;
  *) [ -e $pipe/control ] || exit 1
     read word; echo $word >> $DIARY; [ "$word" != quit ] || rm $pipe/control ;;
esac
"""


@pytest.fixture
def diary(tmp_path, monkeypatch):
    """The stand-in is on the PATH; what it was asked to do is in this file."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / mps.CONTROL
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DIARY", str(tmp_path / "diary"))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "diary").touch()
    return tmp_path / "diary"


def test_it_starts_in_private_folders_and_leaves_nothing_behind(diary):
    service = MultiProcessService(probe=["true"])
    assert "share the GPU through MPS" in service.start()
    pipe, log = service.environment["CUDA_MPS_PIPE_DIRECTORY"], service.environment["CUDA_MPS_LOG_DIRECTORY"]
    assert Path(pipe, "control").exists()
    assert Path(log).is_dir()
    service.stop()
    assert diary.read_text().split() == ["start", "get_server_list", "quit"]
    assert not Path(pipe).parent.exists()
    assert service.environment == {}


def test_a_service_that_runs_already_is_used_and_left_alone(diary, monkeypatch):
    Path(f"{diary}.default").mkdir()
    Path(f"{diary}.default", "control").touch()
    service = MultiProcessService(probe=["false"])
    assert service.start() is None
    service.stop()
    assert diary.read_text().split() == ["get_server_list"]


@pytest.mark.parametrize(
    ("broken", "probe", "reason"),
    [("yes", ["true"], "exit status 1"), ("", ["false"], "no process can connect"), ("", ["no-such-probe"], "No such")],
)
def test_what_goes_wrong_is_said_and_undone(broken, probe, reason, diary, monkeypatch):
    monkeypatch.setenv("BROKEN", broken)
    service = MultiProcessService(probe=probe)
    note = service.start()
    assert "take turns on the GPU" in note
    assert reason in note
    assert f"{mps.CONTROL} -d" in note
    assert service.environment == {}
    assert list(diary.parent.glob("newton-losses-mps-*")) == []


def test_without_nvidia_s_program_it_says_so(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "not installed" in MultiProcessService().start()


@pytest.mark.parametrize(
    ("slots", "device", "calls"), [(2, "cuda", ["start", "get_server_list", "quit"]), (1, "cuda", []), (2, "cpu", [])]
)
def test_a_sweep_starts_it_for_several_runs_on_cuda_alone(slots, device, calls, diary, tmp_path, monkeypatch, capsys):
    from test_local_processes import CONFIG

    monkeypatch.setattr(processes.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(processes, "MultiProcessService", lambda: MultiProcessService(probe=["true"]))
    store = Store(tmp_path / "store")
    jobs = [Job.of(f"fine {k}", CONFIG.resolved(), store.path, device) for k in range(2)]
    for k, job in enumerate(jobs):
        job.configuration["seed"] = k
    result = run_sweep(jobs, store, Lines(), LocalPool(slots, store.path / ".logs", STUB))
    assert result.exit_code == 0
    assert diary.read_text().split() == calls
    assert ("share the GPU through MPS" in capsys.readouterr().out) == bool(calls)
