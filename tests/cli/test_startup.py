"""The command answers soon: nothing is imported at its start that only some runs need."""

import json
import subprocess
import sys


def test_the_start_imports_neither_the_compiler_nor_what_draws_and_solves():
    program = "import json, sys, newton_losses_bench.cli._app; print(json.dumps(list(sys.modules)))"
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(json.loads(done.stdout))
    assert "newton_losses_bench.batch_norm" in loaded
    assert not loaded & {"torch._dynamo", "sympy", "scipy", "sklearn", "matplotlib", "numba", "triton"}
