"""The mutants of `benchmarks/mutants.py`: each is one change, and the tree is as before after the last."""

import ast
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
