"""Ctrl-C before the command has begun, while what it needs is still being imported: no traceback, and code 130."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import newton_losses_bench.__main__
import newton_losses_bench.cli

ROOT = Path(__file__).parents[2]
SLOW = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("as some packages say it") from None
"""


@pytest.mark.parametrize("package", ["torch", "typer"])
def test_control_c_during_the_imports_ends_in_silence(package, tmp_path):
    (tmp_path / f"{package}.py").write_text(SLOW)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = project["scripts"]["newton-losses"].split(":")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {module} import {name}; {name}()"],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # In the background of a script, where the tests may run, it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with process:
        try:
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30) == ("", "")
            assert process.returncode == 130
        finally:
            process.kill()


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_the_command_has_the_handler_that_was_there(handler, monkeypatch):
    found = []
    monkeypatch.setattr(newton_losses_bench.cli, "load", lambda: lambda: found.append(signal.getsignal(signal.SIGINT)))
    before = signal.signal(signal.SIGINT, handler)
    try:
        newton_losses_bench.__main__.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [handler]
