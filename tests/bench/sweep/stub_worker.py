"""Stands in for the process of a run in `test_local.py`: does what the job's label says, without importing torch.

Every start adds a line to `starts` beside the store, so that a test can count them.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    job = json.loads(sys.stdin.readline())
    folder = Path(job["folder"])
    with open(folder.parent.parent / "starts", "a") as file:
        file.write(job["label"] + "\n")
    if (folder / "result.json").exists():
        return 0
    what = job["label"].split()[0]
    folder.mkdir(parents=True, exist_ok=True)
    if what == "fails" or (what == "fails-once" and not (folder / ".failed").exists()):
        (folder / ".failed").touch()
        print("something broke", file=sys.stderr)
        return 1
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    lock = open(folder / ".lock", "w")  # noqa: SIM115  the open file is the lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 75
    print("a library that prints")
    print(json.dumps({"event": "started", "step": 0, "total": 10}), flush=True)
    if what == "waits":
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        time.sleep(60)
    print(json.dumps({"event": "advanced", "step": 5}), flush=True)
    end = {"step": 10, "test": {"exact_match": 1.0}}
    result = {"configuration": job["configuration"], "test": end["test"], "reported": end, "final": end,
              "steps": 10, "seconds": 0.1, "milliseconds_per_step": 1.0}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"configuration": job["configuration"], "environment": {}}))
    (folder / "result.new").write_text(json.dumps(result))
    os.replace(folder / "result.new", folder / "result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
