"""Training all arms and seeds, as many at a time as there are cores, and telling how far they are.

Every run is an ordinary run folder, so that an interrupted demonstration goes on where it was. How far a run
is can be read off its evaluations, by this process or any other.
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch

from ..loop import run
from ..signals import Interrupted
from ..store import EVALUATIONS
from ._setting import ARMS, Arm, DemoConfig, make_demo_task

Record = dict[str, Any]
_stop: Event | None = None  # of a worker process: set when no further run should begin
Watch = Callable[[dict[str, list[list[Record]]]], None]


def folder_of(out: Path, arm: Arm, seed: int) -> Path:
    """Where the run of an arm and a seed is kept."""
    return out / "runs" / f"{arm.name}-{seed}"


def train_arms(out: Path, config: DemoConfig, seeds: int, watch: Watch) -> bool:
    """Train every arm with every seed under `out`; `watch` is shown the evaluations so far, twice a second.

    Returns whether all runs are finished: not so after Ctrl-C, which lets each save and end.
    """
    processes = min(os.cpu_count() or 1, len(ARMS) * seeds)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, initializer=_begin_worker, initargs=(stop,)) as pool:
        # Seed by seed, so that the first comparison is complete early.
        waiting: list[Future[bool]] = [
            pool.submit(_train, str(folder_of(out, arm, seed)), config.with_arm(arm, seed))
            for seed in range(seeds)
            for arm in ARMS
        ]
        try:
            while not all(future.done() for future in waiting):
                watch(evaluations_of(out, seeds))
                time.sleep(0.5)
        except KeyboardInterrupt:
            # The terminal sent it to the children too: they are saving now, and those to come do not begin.
            stop.set()
            return False
        watch(evaluations_of(out, seeds))
        return all(future.result() for future in waiting)


def evaluations_of(out: Path, seeds: int) -> dict[str, list[list[Record]]]:
    """For each arm's name, for each seed, the evaluations so far."""
    return {arm.name: [list(_read(folder_of(out, arm, seed))) for seed in range(seeds)] for arm in ARMS}


def _read(folder: Path) -> Iterator[Record]:
    try:
        text = (folder / EVALUATIONS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):  # the last line may be half written at this moment
            yield json.loads(line)


def _begin_worker(stop: Event) -> None:
    """The runs share the cores among themselves; networks this small gain nothing from more threads."""
    global _stop
    _stop = stop
    torch.set_num_threads(1)
    # While it trains, a worker answers Ctrl-C by saving. While it waits there is nothing to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train(folder: str, config: DemoConfig) -> bool:
    if _stop is not None and _stop.is_set():
        return False
    try:
        run(config, folder, make=make_demo_task)
    except Interrupted:
        return False
    return True
