"""Ctrl-C before the command has begun, while what it needs is being imported; and packages that are missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import newton_losses_bench.cli

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
SLOW = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("as some packages say it") from None
"""


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("typer", ["-m", "newton_losses_bench"]),
        ("torch", ["-m", "newton_losses_bench", "train"]),
        ("torch", ["-m", "newton_losses", "train"]),
    ],
)
def test_control_c_during_the_imports_ends_in_silence(package, words, tmp_path):
    (tmp_path / f"{package}.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # In the background of a script, where the tests may run, it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with process:
        try:
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30) == ("", "")
            assert process.returncode == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_afterwards_the_handler_is_the_one_that_was_there(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with newton_losses_bench.cli.quiet_interrupts():
            assert signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_its_packages_the_command_says_what_to_install():
    script = "import sys; sys.modules['typer'] = None; from newton_losses_bench.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'newton-losses[bench]'" in done.stderr


def test_a_library_without_the_command_says_what_to_install(tmp_path):
    """As where somebody has copied the library alone."""
    (tmp_path / "newton_losses").symlink_to(Path(newton_losses_bench.__file__).parents[1] / "newton_losses")
    others = [path for path in sys.path if path and not (Path(path) / "newton_losses_bench").exists()]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), *others])}
    program = "import sys, runpy; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]; "
    program += "runpy.run_module('newton_losses', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'newton-losses[bench]'" in done.stderr
