"""The mutants of a module: its code with one operator, number, condition or call changed.

`mutation.py` runs the tests on them.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

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


@dataclass(frozen=True)
class Mutant:
    module: str  # from the root of the repository
    number: int  # among the module's mutants
    line: int
    name: str  # what is changed, and the line; without its number, so that it stays when lines move


@cache
def mutants_of(module: str) -> list[Mutant]:
    source = (ROOT / module).read_text(encoding="utf-8")
    lines, names, found = source.splitlines(), Counter[str](), []
    for number, (line, what) in enumerate(mutants(ast.parse(source))):
        name = f"{module.removeprefix('src/newton_losses/')}: {what}: {lines[line - 1].strip()}"
        names[name] += 1
        found.append(Mutant(module, number, line, name if names[name] == 1 else f"{name} ({names[name]})"))
    return found


def mutated_tree(mutant: Mutant) -> ast.Module:
    tree = ast.parse((ROOT / mutant.module).read_text(encoding="utf-8"))
    for number, _ in enumerate(mutants(tree)):
        if number == mutant.number:
            return ast.fix_missing_locations(tree)
    raise IndexError(mutant)


@cache
def statements(module: str) -> dict[int, range]:
    """The lines of the statement that a line is in; for a function's signature and decorators all of the function."""
    spans = {}
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.stmt):
            header = last = node.end_lineno or node.lineno
            if body := getattr(node, "body", None):
                header = max(node.lineno, body[0].lineno - 1)
                if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    last = header
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            spans.update(dict.fromkeys(range(first, header + 1), range(first, last + 1)))
    return spans
