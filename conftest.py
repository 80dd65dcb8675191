"""What the collection of doctests leaves out: modules that import a compiler which is not installed here."""

from importlib.util import find_spec

_NEEDS = {"src/newton_losses/paths/_triton.py": "triton", "src/newton_losses/paths/_kernels.py": "numba"}

collect_ignore = [module for module, package in _NEEDS.items() if find_spec(package) is None]
