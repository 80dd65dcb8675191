"""Jobs on a Ray cluster, through Ray's public interface: tasks with retries.

Ray copies the code to the machines, starts the tasks and restarts them when a machine dies. If the store lies on a file
system that the machines share, a run resumes from its checkpoint on another machine. If not, each machine works in a
folder of its own and sends back the files of a finished run.
"""

import contextlib
import importlib
import shutil
import socket
import tempfile
import threading
import time
import traceback
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import newton_losses
import newton_losses_bench
from newton_losses.errors import ArgumentError

from ..machine import commit
from ..store import AVERAGE, CHECKPOINT, CONFIG, EVALUATIONS, RESULT, WEIGHTS, RunInUse, write_atomically
from ..train import Progress
from .jobs import Job, execute, in_words
from .run import Counters

# How often Ray restarts a task whose machine or process has died.
_RAY_RETRIES = 5
_MARKER = ".shared"
_WAIT_SECONDS = 0.5
# A machine that is cut off keeps working for a while on the run that another one takes over.
_IN_USE_SECONDS = 600.0


class RayPool:
    """A pool on the cluster at `address` ("auto": the cluster of this machine). `path` is the store.

    Each run takes one CPU, and with CUDA 1/`per_gpu` of a GPU.
    """

    def __init__(self, address: str, path: Path, per_gpu: int = 1, device: str = "auto") -> None:
        try:
            self._ray = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise ArgumentError("--ray needs the package ray: pip install 'newton-losses[ray]'") from None
        if ":" in device:
            raise ArgumentError(f"--device {device}: Ray assigns each run a GPU. Use --device cuda, or leave it out.")
        self._path = path
        self._token = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._pending: dict[Any, Job] = {}
        try:
            self._ray.init(address=address, runtime_env=_runtime(), log_to_driver=False)
        except ConnectionError as error:
            raise ArgumentError(
                f"--ray {address}: no cluster answers at this address ({error}). Start one with: ray start --head"
            ) from None
        gpus = self._ray.cluster_resources().get("GPU", 0) > 0 and device != "cpu"
        self._task = self._ray.remote(
            num_cpus=1, num_gpus=1 / per_gpu if gpus else 0, max_retries=_RAY_RETRIES, retry_exceptions=False
        )(do_on_node)

    def start(self, jobs: list[Job], counters: Counters) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        (self._path / _MARKER).write_text(self._token, encoding="utf-8")
        for job in jobs:
            self._submit(job)
        self._thread = threading.Thread(target=self._collect, args=(counters,), daemon=True)
        self._thread.start()

    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask every run once to save and end; waiting runs do not start."""
        self._stopping.set()
        self._cancel(force=False)

    def kill(self) -> None:
        self._stopping.set()
        self._cancel(force=True)

    def close(self) -> None:
        """Leave cluster and store as they were."""
        self._ray.shutdown()
        (self._path / _MARKER).unlink(missing_ok=True)

    def _cancel(self, force: bool) -> None:
        for reference in list(self._pending):
            self._ray.cancel(reference, force=force)

    def _submit(self, job: Job) -> None:
        self._pending[self._task.remote(job.to_dict(), str(self._path.resolve()), self._token)] = job

    def _collect(self, counters: Counters) -> None:
        while self._pending:
            ready, _ = self._ray.wait(list(self._pending), timeout=_WAIT_SECONDS)
            for reference in ready:
                self._settle(self._pending.pop(reference), reference, counters)

    def _settle(self, job: Job, reference: Any, counters: Counters) -> None:
        try:
            found: dict[str, Any] = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            found = {"error": f"Ray: {error}"}
        except KeyboardInterrupt as error:  # how Ray hands over what a cancelled run ended with
            found = {"error": repr(error)}
        if "error" not in found:
            for name, content in found["files"].items():  # the result comes last
                folder = self._path / job.name
                folder.mkdir(exist_ok=True)
                write_atomically(folder / name, content)
            counters.finish(job, found["result"])
        elif self._stopping.is_set():
            counters.put_back(job)
        elif counters.fail(job, found["error"]):
            self._submit(job)


def do_on_node(job: dict[str, Any], store: str, token: str) -> dict[str, Any]:
    """Run a job on this machine, whichever it is. Errors are returned: Ray retries only failures of machines."""
    shared = _is_shared(Path(store), token)
    base = Path(store) if shared else Path(tempfile.gettempdir()) / f"newton-losses-{token}"
    wanted = Job(**job)
    here = replace(wanted, folder=str(base / wanted.name))
    try:
        result = _execute_when_free(here)
    except Exception as error:
        traceback.print_exc()  # into Ray's logs
        return {"error": f"on {socket.gethostname()}: {in_words(error)}"}
    return {"result": result, "files": {} if shared else _taken_away(Path(here.folder))}


def _taken_away(folder: Path) -> dict[str, bytes]:
    """The files of a finished run, the result last. The machine keeps none: nobody would tidy up there."""
    names = (CONFIG, EVALUATIONS, CHECKPOINT, WEIGHTS, AVERAGE, RESULT)
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # other runs are still there
        folder.parent.rmdir()
    return files


def _execute_when_free(job: Job) -> dict[str, Any]:
    end = time.monotonic() + _IN_USE_SECONDS
    while True:
        try:
            return execute(job, Progress())
        except RunInUse:
            if time.monotonic() > end:
                raise
            time.sleep(1.0)


def _is_shared(store: Path, token: str) -> bool:
    """Whether this machine sees the same folder that the sweep writes into."""
    try:
        return (store / _MARKER).read_text(encoding="utf-8") == token
    except OSError:
        return False


def _runtime() -> dict[str, Any]:
    """This code on all machines, and its commit, which a copy of the code cannot know."""
    return {"py_modules": [newton_losses, newton_losses_bench], "env_vars": {"NEWTON_LOSSES_COMMIT": commit() or ""}}
