"""For the reference: a table with every parameter of a function or class.

Its rows come from the docstring (a section `Args:`, or a list of `- \\`name\\`: …`) and, for words that mean the same
everywhere, from `parameters.toml`.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import griffe

WORDS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).with_name("parameters.toml")).read_text("utf-8"))
_ENTRY = re.compile(r"^- ((?:`\w+`(?:, | and )?)+)(.*(?:\n  .*)*)\n?", re.MULTILINE)
_SECTION = re.compile(r"^Args:\n((?:    .*\n|\n(?=    ))+)", re.MULTILINE)


def with_table(text: str, names: Sequence[str], owner: str) -> tuple[str, list[str]]:
    """The docstring of `owner` with a section `Args:` for `names`, and the names that nobody explains.

    >>> print(with_table("Sorts.\\n\\n- `scores`: what\\n  is sorted.", ["scores", "dim"], "soft_sort")[0])
    Sorts.
    <BLANKLINE>
    Args:
        scores: what is sorted.
        dim: the dimension along which items are sorted.
    """
    known = {**WORDS["everywhere"], **WORDS.get(owner.split(".")[0], {}), **WORDS.get(owner, {})}
    text = f"{text}\n"
    listed: dict[str, str] = {}

    def take(entry: re.Match[str]) -> str:
        found = re.findall(r"`(\w+)`", entry[1])
        if not set(found) <= set(names):
            return entry[0]
        words = " ".join(entry[2].split())
        said = words.removeprefix(": ").removeprefix("is ") if re.match(r":|is ", words) else f"{entry[1]} {words}"
        listed.update(dict.fromkeys(found, said))
        return ""

    if section := _SECTION.search(text):
        listed = {name[1]: "" for name in re.finditer(r"^    (\w+): ", section[1], re.MULTILINE)}
    else:
        text = _ENTRY.sub(take, text)
    missing = [name for name in names if name not in listed and name not in known]
    rows = "".join(f"    {name}: {listed.get(name) or known[name]}\n" for name in names if _new(name, listed, known))
    if section:
        return text[: section.end(1)].rstrip("\n") + "\n" + rows + "\n" + text[section.end(1) :], missing
    if not rows:
        return text.rstrip(), missing
    # Above the example, or at the end.
    place = re.search(r"^>>> ", text, re.MULTILINE)
    before, after = (text[: place.start()], text[place.start() :]) if place else (text, "")
    return f"{before.rstrip()}\n\nArgs:\n{rows}\n{after}".strip(), missing


def _new(name: str, listed: dict[str, str], known: dict[str, str]) -> bool:
    return bool(listed.get(name)) or (name not in listed and name in known)


class ParameterTables(griffe.Extension):
    """Called by mkdocstrings when a package is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self._visit(pkg)

    def _visit(self, parent: griffe.Module | griffe.Class) -> None:
        for member in parent.members.values():
            if member.is_alias:
                continue
            if isinstance(member, griffe.Class | griffe.Function):
                if member.docstring is None and member.name == "forward":
                    member.docstring = griffe.Docstring("", parent=member, parser="google")
                # Fields of a result are explained where they are listed.
                plain = isinstance(member, griffe.Function) or not {"dataclass", "NamedTuple"} & member.labels
                names = [one.name.lstrip("*") for one in member.parameters if one.name not in ("self", "cls")]
                owner = member.name if isinstance(parent, griffe.Module) else f"{parent.name}.{member.name}"
                if plain and names and member.docstring is not None:
                    member.docstring.value = with_table(member.docstring.value, names, owner)[0]
            if isinstance(member, griffe.Module | griffe.Class):
                self._visit(member)
