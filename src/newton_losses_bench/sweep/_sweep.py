"""Doing all runs of a sweep: those that are not done yet, here or on a cluster, until all is done or it is stopped."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..config import identity
from ..results import Store
from ..signals import stop_requests
from .counters import Failure, Listener, Tally
from .jobs import Job, tidy
from .processes import LocalPool

LOGS = ".logs"
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: how many runs were done before it and in it, what failed, by which signal it was stopped."""

    total: int
    finished_before: int
    finished: int
    failures: tuple[Failure, ...]
    stopped_by: int | None

    @property
    def exit_code(self) -> int:
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        # By what was done, not only by what failed: a run that got lost is no success either.
        return 0 if self.finished_before + self.finished == self.total else 1


class Pool(Protocol):
    """Where jobs are done. `stop` asks running jobs to save and end; `kill` does not ask; `close` comes last."""

    def start(self, jobs: list[Job], tally: Tally) -> None: ...
    def is_busy(self) -> bool: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


def run_sweep(
    jobs: Iterable[Job], store: Store, listener: Listener, *, slots: int = 1, pool: Pool | None = None
) -> SweepResult:
    """Do the jobs that the store has no record of, `slots` at once on this machine or in another `pool`.

    A record counts wherever in the store it lies, whatever its folder is called. The first Ctrl-C, or a polite
    `kill`, lets every run save itself; a second one ends them at once.
    """
    wanted, to_do = split(jobs, store)
    for job in wanted:
        if not job.keep_weights:
            tidy(job)
    tally = Tally(len(to_do), len(wanted) - len(to_do), listener)
    pool = pool or LocalPool(slots, store.path / LOGS)
    # The listener answers: bars of several rows would wipe out what anyone else writes.
    with stop_requests(answers=False) as stop:
        try:
            pool.start(to_do, tally)
            asked = False
            while pool.is_busy():
                time.sleep(_LOOK_SECONDS)
                if stop.requested is not None and not asked:
                    asked = True
                    tally.stop()
                    pool.stop()
        except BaseException:
            pool.kill()
            raise
        finally:
            listener.close()
            pool.close()
    return SweepResult(tally.total, tally.finished_before, len(tally.finished), tuple(tally.failures), stop.requested)


def split(jobs: Iterable[Job], store: Store) -> tuple[list[Job], list[Job]]:
    """The jobs, each once, and those of them that the store has no record of."""
    wanted = {identity(job.configuration): job for job in jobs}
    done = {record.identity for record in store.records()}
    return list(wanted.values()), [job for key, job in wanted.items() if key not in done]
