"""Where the locale knows no character but those of ASCII, every command works, and no file is read by the locale."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import newton_losses

SOURCES = sorted(Path(newton_losses.__file__).parent.rglob("*.py"))
PROGRAM = """
import sys
from newton_losses_bench.cli import main

folder = sys.argv[1]
run = "--algorithm softsort --curvature fisher --data digits --digits 1 --n 3 --steps 2 --device cpu"
for command in (
    "reproduce --help",
    "reproduce list table1",
    "train sorting --help",
    f"train sorting {run} --validation-sets 5 --test-sets 5 --out {folder}/run",
    f"report -r {folder} --out {folder}/site",
):
    sys.argv[1:] = command.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
    print("done:", command, flush=True)
"""
PLAIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}


def test_commands_in_a_locale_of_ascii(tmp_path):
    environment = {**os.environ, **PLAIN, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONIOENCODING", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: ") == 5
    assert "λ=10" in done.stdout
    assert "λ" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_no_file_is_read_by_the_locale():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".read_text", ".write_text")):
                assert any(word.arg == "encoding" for word in node.keywords), f"{path.name}:{node.lineno}"
