"""What the collection of doctests leaves out: modules that import what is not installed here."""

from importlib.util import find_spec

_NEEDS = {
    "src/newton_losses/bench/kernels/_adam_triton.py": "triton",
    "src/newton_losses/bench/kernels/_digit_triton.py": "triton",
    "src/newton_losses/bench/kernels/_head_triton.py": "triton",
    "src/newton_losses/curvature/_small_solve_triton.py": "triton",
    "src/newton_losses/paths/_relaxed_triton.py": "triton",
    "src/newton_losses/paths/_triton.py": "triton",
    "src/newton_losses/paths/_kernels.py": "numba",
    "src/newton_losses/sorting/_kernels.py": "numba",
    "src/newton_losses/sorting/_triton.py": "triton",
    "src/newton_losses/sorting/_triton_rows.py": "triton",
    "src/newton_losses/sorting/_triton_values.py": "triton",
    "tests/paths/algovision_program.py": "algovision",
}

collect_ignore = [module for module, package in _NEEDS.items() if find_spec(package) is None]
