"""One process of this machine that does jobs one after another, as the sweep sees it. `worker.py` is its other side."""

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ..store import RunError
from .jobs import Job

# A process that was told to end, or whose sweep has lost track of it, may still have a run to save.
_PATIENCE_SECONDS = 60.0


class WorkerProcess:
    """A process that `command` has started. It says after each job whether it `stays` for another.

    A session of its own: Ctrl-C at the terminal reaches the sweep, which asks each process once.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: IO[str]) -> None:
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"its process could not be started ({error}).") from error
        self.stays = True
        self._is_new = True

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def send_signal(self, number: int) -> None:
        self._child.send_signal(number)

    def hand_over(self, job: Job, log: Path) -> None:
        """Let it do a job, and write whatever is said meanwhile to the end of `log`."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; `follow` finds out how
            self._child.stdin.write(json.dumps({**job.to_dict(), "log": str(log)}) + "\n")
            self._child.stdin.flush()

    def follow(self, advance: Callable[[float], None]) -> int | None:
        """Wait for the end of the job, telling `advance` which fraction is done; the job's exit code.

        `None` where the process had ended after an earlier job and never read this one, which is then not to blame.
        """
        assert self._child.stdout is not None
        begun, total = self._is_new, 1
        self._is_new = False
        for line in self._child.stdout:
            event = _event(line)
            kind = event.get("event")
            if kind == "ended":
                self.stays = bool(event["stays"])
                return int(event["code"])
            begun = begun or kind == "begun"
            if kind == "started":
                total = max(1, event["total"])
            if kind in ("started", "advanced", "evaluated"):
                advance(event["step"] / total)
        self.stays = False
        code = self._child.wait()
        return code if begun else None

    def end(self) -> None:
        """Let it go: without work it ends at once, and a run that is at work saves and stops."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


def _event(line: str) -> dict[str, Any]:
    """What a line says; nothing where a library has printed it."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
