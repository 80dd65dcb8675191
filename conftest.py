"""What the collection of doctests leaves out: modules that import what is not installed here."""

from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).parent
# Modules by their names, because a list of them would be forgotten with the next one.
_NEEDS = {
    "src/newton_losses*/**/*_triton*.py": "triton",
    "src/newton_losses/*/*kernels.py": "numba",
    "tests/paths/algovision_program.py": "algovision",
}

collect_ignore = [
    str(module.relative_to(_ROOT))
    for pattern, package in _NEEDS.items()
    if find_spec(package) is None
    for module in _ROOT.glob(pattern)
]
