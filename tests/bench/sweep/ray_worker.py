"""Run by `test_ray.py` in a process of its own: a Ray cluster of two nodes, one of which is killed in the middle.

    python ray_worker.py FOLDER

Both nodes are processes of this machine. The second is killed when a run is finished and two are at work, one on
each node. Then one more run is done as if the nodes did not share the store. Standard output is one JSON object.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from newton_losses_bench.config import SortingConfig
from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Job, Lines, run_sweep
from newton_losses_bench.sweep import ray as on_ray

RUNS = 6
CONFIG = {
    "algorithm": "softsort", "data": "digits", "digits": 1, "n": 3, "steps": 300, "eval_every": 50, "batch_size": 8,
    "validation_sets": 20, "test_sets": 20, "device": "cpu",
}  # fmt: skip


def results(folder: Path) -> dict[str, int]:
    """When each result was written."""
    return {record.path.name: (record.path / "result.json").stat().st_mtime_ns for record in Store(folder).records()}


def jobs(folder: Path, seeds: range) -> list[Job]:
    configs = [SortingConfig(seed=seed, **CONFIG).resolved() for seed in seeds]
    return [Job.of(f"seed {config.seed}", config, folder, "cpu") for config in configs]


def with_a_dying_node(folder: Path, two_nodes, doomed) -> dict[str, object]:
    at_death: dict[str, int] = {}

    def kill_when_busy() -> None:
        while not at_death:
            at_work = [run for run in Store(folder).unfinished() if run.step]
            if len(at_work) == 2:
                at_death.update(results(folder))
            time.sleep(0.02)
        two_nodes.remove_node(doomed, allow_graceful=False)

    threading.Thread(target=kill_when_busy, daemon=True).start()
    pool = on_ray.RayPool(two_nodes.address, folder, device="cpu")
    done = run_sweep(jobs(folder, range(RUNS)), Store(folder), Lines(sys.stderr), pool)
    again = [name for name, written in at_death.items() if results(folder)[name] != written]
    return {
        "finished": done.finished,
        "failures": [failure.message for failure in done.failures],
        "finished_at_death": len(at_death),
        "done_again": again,
    }


def without_sharing(folder: Path, address: str) -> dict[str, object]:
    """The nodes look for a file that this process does not write, and so believe in another file system."""
    on_ray._MARKER = ".elsewhere"
    pool = on_ray.RayPool(address, folder, device="cpu")
    done = run_sweep(jobs(folder, range(1)), Store(folder), Lines(sys.stderr), pool)
    (record,) = Store(folder).records()
    return {"finished": done.finished, "files": sorted(file.name for file in record.path.iterdir())}


def main(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    two_nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    doomed = two_nodes.add_node(num_cpus=1)
    report = {
        "dying": with_a_dying_node(folder / "shared", two_nodes, doomed),
        "apart": without_sharing(folder / "apart", two_nodes.address),
    }
    two_nodes.shutdown()
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
