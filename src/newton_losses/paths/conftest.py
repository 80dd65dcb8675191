"""What the collection of doctests leaves out here: modules that import a compiler which is not installed."""

from importlib.util import find_spec

_NEEDS = {"_triton.py": "triton", "_kernels.py": "numba"}

collect_ignore = [module for module, package in _NEEDS.items() if find_spec(package) is None]
