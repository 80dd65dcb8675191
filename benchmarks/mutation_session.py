"""Runs tests on mutants for `mutation.py`: in forks of one session of pytest, or in a copy of the repository."""

import argparse
import ast
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from mutants import ROOT, Mutant, mutated_tree, statements

SURVIVED, CAUGHT, AT_IMPORT = 0, 1, 77
# Seconds that a test gets beyond ten times those it took: alone, it has to make what it shared with others.
MORE = 60
# The processes that these tests start import the library anew, without the mutant.
ELSEWHERE = "tests/distributed/"


class Record:
    """Which lines of the modules each test runs, and how long it takes; kept in a file, one test a line."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds: dict[str, float] = {}
        self.tests: dict[tuple[str, int], set[str]] = {}
        self.failed: list[str] = []
        self.caught: Counter[tuple[str, str]] = Counter()
        if file.exists():
            for row in file.read_text(encoding="utf-8").splitlines():
                self.add(**json.loads(row))

    def add(self, test: str, seconds: float, passed: bool, lines: dict[str, list[int]]) -> None:
        self.seconds[test] = seconds
        if not passed:
            self.failed.append(test)
            return
        for module, numbers in lines.items():
            for line in numbers:
                self.tests.setdefault((module, line), set()).add(test)

    def only(self, collected: set[str]) -> None:
        """Leave out tests that there are no more, or that nobody asked for."""
        self.seconds = {test: seconds for test, seconds in self.seconds.items() if test in collected}
        self.tests = {line: tests & collected for line, tests in self.tests.items()}

    def leave_out(self, test: str) -> None:
        for tests in self.tests.values():
            tests.discard(test)

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that run the mutant's statement, the most promising first."""
        found = self._promising(mutant.module, statements(mutant.module).get(mutant.line, range(0)))
        return [test for test in found if not test.startswith(ELSEWHERE)]

    def of_module(self, module: str) -> list[str]:
        return self._promising(module, [line for name, line in self.tests if name == module])

    def _promising(self, module: str, lines: Iterable[int]) -> list[str]:
        found = {test for line in lines for test in self.tests.get((module, line), ())}
        ordered = sorted(found, key=lambda test: (self.seconds[test] + 0.02) / (1 + self.caught[module, test]))
        # Of the cases of one test function one is telling, and many more are not.
        cases, turns = Counter[str](), {}
        for test in ordered:
            function = test.split("[")[0]
            turns[test] = 0 if self.caught[module, test] else cases[function]
            cases[function] += 1
        return sorted(ordered, key=turns.__getitem__)


class NoShrinking:
    """A plugin of pytest: hypothesis need not make a failure small, nor remember it."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("mutation", database=None, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutation")


class Session(NoShrinking):
    """A plugin of pytest that tests the mutants in forks, instead of running the tests that pytest has collected."""

    def __init__(self, todo: list[Mutant], record: Record, options: argparse.Namespace, out: int) -> None:
        self.todo, self.record, self.options, self.out = deque(todo), record, options, out
        self.ran = {name: row.get("ran", []) for name, row in known(options).items()}
        self.passed = True
        self.items: dict[str, Any] = {}
        self.alone: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed &= not report.failed

    def run(self, item: Any, following: Any) -> bool:
        self.passed = True
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self.passed

    def pytest_runtestloop(self, session: Any) -> bool:
        import newton_losses

        assert str(newton_losses.__file__).startswith(str(ROOT)), "another copy of the library is tested"
        self.items = items = {item.nodeid: item for item in session.items}
        if missing := [item for name, item in items.items() if name not in self.record.seconds]:
            self.say(f"recording {len(missing)} tests")
            if not (child := os.fork()):
                self.trace(missing)
                os._exit(0)
            os.waitpid(child, 0)
            caught = self.record.caught
            self.record = Record(self.record.file)
            self.record.caught = caught
        self.record.only(set(items))
        self.options.collected.write_text(json.dumps(list(items)), encoding="utf-8")
        if self.record.failed:
            self.say("not used, because they fail without a mutant: " + ", ".join(self.record.failed))
        functions = defaultdict(list)
        for one in gc.get_objects():
            if type(one) is FunctionType:  # isinstance would wake lazy objects
                functions[one.__code__.co_filename].append(one)
        gc.freeze()
        running: dict[int, tuple[Mutant, list[str], bool, int]] = {}
        while self.todo or running:
            if not self.todo or len(running) == self.options.processes:
                self.collect(running)
                continue
            mutant = self.todo.popleft()
            if time.monotonic() > self.options.end:
                self.todo.clear()
                continue
            ran = self.ran.get(mutant.name, [])
            tests = [test for test in self.record.of(mutant) if test not in ran]
            tests, all_tests = affordable(self.record, tests, self.options.budget)
            if not tests:
                keep(self.options, mutant, "survived" if ran else "later", all_tests=all_tests, ran=ran)
                continue
            read, write = os.pipe()
            if not (child := os.fork()):
                os._exit(
                    self.test(mutant, [items[test] for test in tests], functions[str(ROOT / mutant.module)], write)
                )
            os.close(write)
            running[child] = mutant, tests, all_tests, read
        return True

    def trace(self, items: list[Any]) -> None:
        """Run the tests and note what they run, in a fork."""
        library = ROOT / "src" / "newton_losses"  # all of it: a record serves for other modules, too
        modules = {str(file): str(file.relative_to(ROOT)) for file in library.rglob("*.py")}
        lines: dict[str, set[int]] = defaultdict(set)

        def in_module(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines[modules[frame.f_code.co_filename]].add(frame.f_lineno)
            return in_module

        def anywhere(frame: FrameType, event: str, _: Any) -> Any:
            return in_module if frame.f_code.co_filename in modules else None

        with self.record.file.open("a", encoding="utf-8") as file:
            for item, following in zip(items, [*items[1:], None], strict=True):
                lines.clear()
                start = time.monotonic()
                threading.settrace(anywhere)
                sys.settrace(anywhere)
                passed = self.run(item, following)
                sys.settrace(None)
                row = {"test": item.nodeid, "seconds": round(time.monotonic() - start, 4), "passed": passed}
                found = {module: sorted(numbers) for module, numbers in lines.items()}
                file.write(json.dumps(row | {"lines": found}) + "\n")
                file.flush()

    def test(self, mutant: Mutant, items: list[Any], functions: list[FunctionType], write: int) -> int:
        """The tests on one mutant, in a fork."""
        if not put_in_place(mutant, functions):
            return AT_IMPORT
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            os.write(write, number.to_bytes(4))
            self.set_alarm(item)
            if not self.run(item, following):
                return CAUGHT
        return SURVIVED

    def set_alarm(self, item: Any) -> None:
        """It ends this process."""
        signal.setitimer(signal.ITIMER_REAL, MORE + 10 * self.record.seconds[item.nodeid])

    def passes_alone(self, test: str) -> bool:
        """Whether it passes in a fork without a mutant, too: not if it leans on tests that usually run before it."""
        if test not in self.alone:
            if not (child := os.fork()):
                self.set_alarm(self.items[test])
                os._exit(not self.run(self.items[test], None))
            self.alone[test] = os.waitpid(child, 0)[1] == 0
        return self.alone[test]

    def collect(self, running: dict[int, tuple[Mutant, list[str], bool, int]]) -> None:
        child, status = os.waitpid(-1, 0)
        if child not in running:
            return
        mutant, tests, all_tests, read = running.pop(child)
        with os.fdopen(read, "rb") as pipe:
            started = len(pipe.read()) // 4
        match os.waitstatus_to_exitcode(status):
            case 0:
                ran = self.ran.get(mutant.name, []) + tests
                keep(self.options, mutant, "survived", all_tests=all_tests, ran=[] if all_tests else ran)
                self.say(f"{mutant.line}: {mutant.name}{'' if all_tests else '    (so far)'}")
            case 77:
                keep(self.options, mutant, "later")
            case _ if not self.passes_alone(tests[started - 1]):
                self.say(f"not used, because it fails alone without a mutant: {tests[started - 1]}")
                self.record.leave_out(tests[started - 1])
                self.todo.appendleft(mutant)
            case _:
                self.record.caught[mutant.module, tests[started - 1]] += 1
                keep(self.options, mutant, "caught", by=tests[started - 1])

    def say(self, text: str) -> None:
        os.write(self.out, (text + "\n").encode())


def affordable(record: Record, tests: list[str], budget: float) -> tuple[list[str], bool]:
    """The first tests that take no longer than the budget together, and whether these are all."""
    chosen, spent = [], 0.0
    for test in tests:
        if spent + record.seconds[test] <= budget:
            spent += record.seconds[test]
            chosen.append(test)
    return chosen, len(chosen) == len(tests)


def put_in_place(mutant: Mutant, functions: list[FunctionType]) -> bool:
    """Give the module's functions the code of the mutant; False if it runs at import only, or has other closures."""
    path = ROOT / mutant.module
    old = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    changed = dict(changed_functions(old, compile(mutated_tree(mutant), str(path), "exec")))
    found = [function for function in functions if function.__code__ in changed]
    if any(function.__code__.co_freevars != changed[function.__code__].co_freevars for function in found):
        return False
    for function in found:
        function.__code__ = changed[function.__code__]
    return bool(found)


def changed_functions(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions of the module with their changed code; none if the module's or a class's own code is changed."""
    if old.co_flags & 1:  # a function, which has fast local variables
        if old != new:
            yield old, new
        return
    for one, other in zip(parts(old), parts(new), strict=False):
        yield from changed_functions(one, other)


def parts(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def keep(options: argparse.Namespace, mutant: Mutant, result: str, **more: Any) -> None:
    """Write one result down; the last one of a mutant is what counts."""
    row = {"name": mutant.name, "line": mutant.line, "result": result, **more}
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def known(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    if not options.results.exists():
        return {}
    rows = map(json.loads, options.results.read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in rows}


def test_in_copies(todo: list[Mutant], record: Record, options: argparse.Namespace) -> None:
    """One after another in a copy of the repository, for mutants that cannot be put in place."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        copy_repository(folder)
        for mutant in todo:
            if time.monotonic() > options.end:
                return
            tests = record.of(mutant) or record.of_module(mutant.module)
            tests, all_tests = affordable(record, tests, options.budget)
            if mutant.module.endswith("_distributed.py"):  # its lines run in subprocesses
                tests = [*(test for test in record.seconds if test.startswith("tests/distributed")), *tests]
            if not tests:
                keep(options, mutant, "survived", all_tests=True)
                print(f"{mutant.line}: {mutant.name}    (no test gets there)", flush=True)
                continue
            (folder / mutant.module).write_text(ast.unparse(mutated_tree(mutant)), encoding="utf-8")
            status = run_tests(folder, tests, MORE + 10 * sum(record.seconds[test] for test in tests))
            shutil.copyfile(ROOT / mutant.module, folder / mutant.module)
            keep(options, mutant, "caught" if status else "survived", all_tests=all_tests)
            if not status:
                print(f"{mutant.line}: {mutant.name}{'' if all_tests else '    (so far)'}", flush=True)


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


def run_pytest(folder: Path, arguments: list[str], plugin: object) -> int:
    """Pytest in this process, which is a fork and says nothing."""
    os.setsid()
    sink = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(sink, stream)
    os.chdir(folder)
    sys.path[:] = [one for one in sys.path if one != str(ROOT / "benchmarks")]  # it has names of folders of tests
    sys.dont_write_bytecode = True  # two mutants of one second and size would share it
    import pytest

    quiet = ["-x", "-q", "-s", "-p", "no:cacheprovider"]
    return int(pytest.main([*quiet, *arguments], plugins=[plugin]))


def run_tests(folder: Path, tests: list[str], timeout: float) -> int | None:
    """The exit status of pytest in the copy, in a fork of this process; None if it took too long."""
    if not (child := os.fork()):
        status = run_pytest(folder, tests, NoShrinking())
        library = sys.modules.get("newton_losses")
        os._exit(status if library is None or str(library.__file__).startswith(str(folder)) else 0)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL
