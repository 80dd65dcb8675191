"""Stands in for the worker process in the tests: does what the label of a job says, without importing torch.

Every start of a job adds a line to `starts` beside the store and the number of the process to `processes`, so
that a test can find them.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def do(job) -> int:
    folder = Path(job["folder"])
    for name, text in (("starts", job["label"]), ("processes", str(os.getpid()))):
        with open(folder.parent.parent / name, "a") as file:
            file.write(text + "\n")
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
    say("started", step=0, total=10)
    if what == "waits":
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        time.sleep(60)
    say("advanced", step=5)
    end = {"step": 10, "test": {"exact_match": 1.0}}
    result = {"configuration": job["configuration"], "test": end["test"], "reported": end, "final": end,
              "steps": 10, "seconds": 0.1, "milliseconds_per_step": 1.0}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"configuration": job["configuration"], "environment": {}}))
    (folder / "result.new").write_text(json.dumps(result))
    os.replace(folder / "result.new", folder / "result.json")
    if what == "stopped":  # done, and asked to stop before it can say so
        sys.exit(130)
    return 0


if __name__ == "__main__":
    sys.exit(do(json.loads(sys.stdin.readline())))
