"""Would the tests notice a mistake? Makes small ones in a module, one at a time, and lists those that no test catches.

    python benchmarks/mutation.py src/newton_losses/perturbed.py
    python benchmarks/mutation.py src/newton_losses/smoothing/_draws.py --tests tests/smoothing/test_draws.py
    python benchmarks/mutation.py src/newton_losses/newton.py --lines 200-300 --list
    python benchmarks/mutation.py src/newton_losses/newton.py src/newton_losses/inject.py --processes 16 --seconds 570

A mutant is the module with one operator, number, condition or call changed (`mutants` has the list). The tests run on
it in a temporary copy of the repository, up to the first failure; give the quickest files first. By default they are
the folder or file of `tests/` with the module's name, and `CORE_TESTS` for the core. A mutant whose tests take five
times as long as without it counts as caught. Exit status 1 if any survives. Not every survivor is a gap: some mutants
change no behaviour.

Torch is imported once and each mutant tested in a fork, which saves seconds per mutant; so this needs a POSIX system.
"""

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WRONG_COPY = 99  # the tests imported the library from somewhere else

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax", "any": "all", "sum": "mean"}
NAMES |= {new: old for old, new in NAMES.items()}

# What tests the Newton loss itself and its curvature, the quickest and most telling first.
CORE = ("newton.py", "inject.py", "functional.py", "_skipped.py", "curvature")
CORE_TESTS = [
    "tests/test_newton.py", "tests/test_inject.py", "tests/test_skipped.py", "tests/test_targets.py",
    "tests/test_bad_input.py", "tests/curvature", "tests/test_careful_users.py", "tests/fuzz/test_found.py",
    "tests/fuzz/test_fuzz.py", "tests/sorting/test_newton_lists.py", "tests/diagnose/test_first_call.py",
]  # fmt: skip

Change = tuple[int, str, Callable[[], Callable[[], None]]]


def mutants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and description of each mutant of the tree, which is the mutant until the next one is asked for."""
    for node in list(_code(tree)):
        for line, what, apply in _changes(node):
            undo = apply()
            yield line, what
            undo()


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, docstrings, error messages or imports."""
    if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return
    yield node
    for name, child in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_params"):
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST):
                    yield from _code(part)


def _changes(node: ast.AST) -> Iterator[Change]:
    line = getattr(node, "lineno", 0)

    def put(name: str, value: object, place: int | None = None) -> Callable[[], Callable[[], None]]:
        def apply() -> Callable[[], None]:
            if place is None:
                old = getattr(node, name)
                setattr(node, name, value)
                return lambda: setattr(node, name, old)
            values = getattr(node, name)
            old = values[place]
            values[place] = value
            return lambda: values.__setitem__(place, old)

        return apply

    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield line, f"{type(operator).__name__} → {other.__name__}", put("ops", other(), place)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in ARITHMETIC:
            other_operator = ARITHMETIC[type(node.op)]
            yield line, f"{type(node.op).__name__} → {other_operator.__name__}", put("op", other_operator())
        case ast.BoolOp():
            flipped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield line, f"{type(node.op).__name__} → {type(flipped).__name__}", put("op", flipped)
        case ast.UnaryOp() if not isinstance(node.op, ast.UAdd):
            double = ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node.operand))
            removed = double if isinstance(node.op, ast.Not) else ast.BinOp(node.operand, ast.Mult(), ast.Constant(1))
            yield line, f"{type(node.op).__name__} removed", _replace(node, removed)
        case ast.Constant(value=bool() as value):
            yield line, f"{value} → {not value}", put("value", not value)
        case ast.Constant(value=int() | float() as value):
            yield line, f"{value} → {value + 1}", put("value", value + 1)
        # A comparison or a `not` is negated where it stands.
        case ast.If() | ast.IfExp() | ast.While() if not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
            yield line, "condition negated", put("test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Attribute() if node.attr in NAMES:
            yield line, f"{node.attr} → {NAMES[node.attr]}", put("attr", NAMES[node.attr])
        case ast.Name() if node.id in NAMES:
            yield line, f"{node.id} → {NAMES[node.id]}", put("id", NAMES[node.id])
        case ast.keyword() if node.arg in ("min", "max"):
            yield node.value.lineno, f"{node.arg}= → {NAMES[node.arg]}=", put("arg", NAMES[node.arg])
        case ast.Expr(value=ast.Call()):
            yield line, "call removed", put("value", ast.Constant(None))


def _replace(node: ast.AST, other: ast.AST) -> Callable[[], Callable[[], None]]:
    """Turn one node into another in place, because its parent is not at hand."""

    def apply() -> Callable[[], None]:
        kind, fields = type(node), dict(vars(node))
        node.__class__ = type(other)  # type: ignore[assignment]
        vars(node).clear()
        vars(node).update(vars(other))

        def undo() -> None:
            node.__class__ = kind  # type: ignore[assignment]
            vars(node).clear()
            vars(node).update(fields)

        return undo

    return apply


def copy_repository(folder: Path) -> None:
    """What is tracked of the source, the tests and what they read."""
    listed = subprocess.run(
        ["git", "ls-files", "src", "tests", "examples", "docs", "conftest.py", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def run_tests(folder: Path, tests: list[str], timeout: float) -> int | None:
    """The exit status of pytest in the copy, in a fork of this process; None if it took too long."""
    child = os.fork()
    if child == 0:
        os.setsid()
        sink = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(sink, stream)
        os.chdir(folder)
        sys.path.remove(str(ROOT / "benchmarks"))  # modules here have the names of folders of tests
        sys.dont_write_bytecode = True  # two mutants of one second and size would share it
        import pytest

        status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
        library = sys.modules.get("newton_losses")
        here = library is None or str(library.__file__).startswith(str(folder))
        os._exit(status if here else WRONG_COPY)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def default_tests(module: Path) -> list[str]:
    """The folder or file of tests named like the module, or like the package that it is in."""
    if module.name in CORE or module.parent.name in CORE:
        return CORE_TESTS
    for name in (module.stem.strip("_"), module.parent.name):
        for found in (ROOT / "tests" / name, ROOT / "tests" / f"test_{name}.py"):
            if found.exists():
                return [str(found.relative_to(ROOT))]
    sys.exit(f"mutation: no tests are named like {module}. Name them with --tests.")


def test_share(share: int, shares: int, modules: list[Path], options: argparse.Namespace) -> tuple[int, list[str]]:
    """Every `shares`-th mutant of the modules, in a copy of the repository: how many there were, and the survivors."""
    first, last = map(int, options.lines.split("-"))
    survivors, count, place_in_list, start = [], 0, -1, time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        copy_repository(folder)
        for name in modules:
            tests, source = options.tests or default_tests(name), (ROOT / name).read_text(encoding="utf-8")
            tree = ast.parse(source)
            for line, what in mutants(tree):
                place_in_list += first <= line <= last
                if not first <= line <= last or place_in_list % shares != share:
                    continue
                if time.monotonic() - start > options.seconds:
                    break
                (folder / name).write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
                count += 1
                if run_tests(folder, tests, options.timeout) == 0:
                    survivors.append(f"{name}:{line}: {what}    {source.splitlines()[line - 1].strip()}")
                    print(survivors[-1], flush=True)
            (folder / name).write_text(source, encoding="utf-8")
    return count, survivors


def fork_share(share: int, shares: int, modules: list[Path], options: argparse.Namespace) -> tuple[int, int]:
    """The same in a fork of this process: its id, and where it writes the numbers of mutants and of survivors."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    count, survivors = test_share(share, shares, modules, options)
    os.write(write, f"{count} {len(survivors)}".encode())
    os._exit(0)


def time_without_mutation(modules: list[Path], options: argparse.Namespace) -> float:
    """The longest time that the tests of a module take without a mutation; they have to pass."""
    longest, done = 0.0, set()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        copy_repository(folder)
        for name in modules:
            tests = options.tests or default_tests(name)
            if tuple(tests) in done:
                continue
            done.add(tuple(tests))
            start = time.monotonic()
            status = run_tests(folder, tests, 1800)
            if status != 0:
                sys.exit(f"mutation: without a mutation the tests end with status {status}; make them pass first.")
            longest = max(longest, time.monotonic() - start)
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", type=Path, nargs="+")
    parser.add_argument("--tests", nargs="+", help="files or folders, the quickest first")
    parser.add_argument("--lines", default="1-1000000", help="only mutants of these lines, as 20-80")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no mutant after so many")
    options = parser.parse_args()
    modules = [module.resolve().relative_to(ROOT) for module in options.modules]
    if options.list:
        for name in modules:
            for line, what in mutants(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
                print(f"{name}:{line}: {what}")
        return
    import pytest  # noqa: F401  (both are slow to import, and shared by all forks)
    import torch  # noqa: F401

    start = time.monotonic()
    options.timeout = 10 + 5 * time_without_mutation(modules, options)
    forks = [fork_share(share, options.processes, modules, options) for share in range(options.processes)]
    count = survived = 0
    for child, read in forks:
        os.waitpid(child, 0)
        told = os.read(read, 100).decode().split()
        if len(told) != 2:
            sys.exit("mutation: a process ended early.")
        count, survived = count + int(told[0]), survived + int(told[1])
    names = ", ".join(map(str, modules)) if len(modules) < 4 else f"{len(modules)} modules"
    print(f"{names}: {count - survived} of {count} mutants caught in {time.monotonic() - start:.0f} s")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
