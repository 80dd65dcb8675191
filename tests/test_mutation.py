"""The mutants of `benchmarks/mutants.py`: each is one change, and the tree is as before after the last."""

import ast
import importlib
import runpy
from pathlib import Path

MUTANTS = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "mutants.py"))["mutants"]

SOURCE = '''
def f(a: int=3, b: "x < 1"=None) -> bool:
    """No docstring with 1 < 2 is changed."""
    if not a or b:
        g(min(a, 1))
    if a < 0:
        raise ValueError(f'{a + 1} is below 0, which is -1')
    return -a + 1.5
'''.strip()


def test_each_mutant_is_one_change():
    tree = ast.parse(SOURCE)
    before = ast.unparse(tree).splitlines()
    found = set()
    for line, _ in MUTANTS(tree):
        after = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == 1
        assert before[line - 1] == changed[0][0]
        found.add(changed[0][1].strip())
    assert ast.unparse(tree).splitlines() == before
    assert found == {
        "def f(a: int=4, b: 'x < 1'=None) -> bool:",
        "if not a and b:",
        "if not (not a or b):",
        "if not not a or b:",
        "None",
        "g(max(a, 1))",
        "g(min(a, 2))",
        "if a <= 0:",
        "if a >= 0:",
        "if a < 1:",
        "return -a - 1.5",
        "return -a + 2.5",
        "return a * 1 + 1.5",
    }


def test_a_mutant_is_put_into_functions_that_are_there(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    changed_functions = importlib.import_module("mutation_session").changed_functions
    source = "class A:\n    size = 3\n\n    def f(self, x, y=4):\n        return [x * k for k in range(1, y)]\n"
    tree, scope = ast.parse(source), {}
    old = compile(source, "a.py", "exec")
    exec(old, scope)
    function, found = scope["A"].f, []
    before = function.__code__
    for _ in MUTANTS(tree):
        changed = dict(changed_functions(old, compile(ast.fix_missing_locations(tree), "a.py", "exec")))
        assert set(changed) <= {before}
        function.__code__ = changed.get(before, before)
        found.append(scope["A"]().f(6) if changed else "at import")
    assert found == ["at import", "at import", [6.0, 3.0, 2.0], [12, 18]]
