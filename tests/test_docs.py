"""Every Python block of the documentation runs, every link leads somewhere, and the reference has every public name."""

import ast
import importlib
import re
from dataclasses import is_dataclass
from inspect import getdoc, getsource, isclass, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import newton_losses

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Files that are not in the repository, and a device that a test machine may lack.
NEEDS_FILES = re.compile(r"MNIST\.splits|Warcraft\.splits|terrain\.make")
# What would take minutes, and what takes its place.
SHORTER = {"steps=500": "steps=2, validation_sets=20, test_sets=20"}


def names_of_the_reader(page: str) -> dict[str, object]:
    """What a page may take for granted because every reader has it: a model, a batch, an optimizer."""
    generator = torch.Generator().manual_seed(0)
    if page == "perturbed/index.md":
        model: torch.nn.Module = torch.nn.Linear(4, 6)
        return {
            "model": model,
            "x": torch.randn(3, 6, 4, generator=generator),
            "wanted_matching": torch.eye(6).expand(3, 6, 6),
        }
    x, labels = torch.randn(8, 4, generator=generator), torch.arange(8) % 3
    model = torch.nn.Linear(4, 3)
    if page == "distributed.md":  # one process stands for all
        names = {"network": model, "loss": torch.nn.functional.mse_loss, "x": x, "target": torch.zeros(8, 3)}
        return {"nl": newton_losses, "DistributedDataParallel": lambda network: network, **names}
    return {
        "model": model,
        "x": x,
        "labels": labels,
        "loader": [(x, torch.zeros(8, 3))],
        "optimizer": torch.optim.Adam(model.parameters()),
        "my_loss": lambda y, target: (torch.sin(3 * y) - target).square().sum(1),
    }


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT)).removeprefix("docs/")


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=relative)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "docs", **names_of_the_reader(relative(page))}
    text = page.read_text()
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    for block in BLOCK.finditer(text):
        # Padded, so that a traceback has the line of the page.
        line = text[: block.start(1)].count("\n")
        code = compile("\n" * line + block.group(1), str(page), "exec")
        if not NEEDS_FILES.search(block.group(1)):
            exec(code, names)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs')}\n" in navigation


def test_the_readme_is_short() -> None:
    """As `wc -w` counts, code and table included."""
    assert len((ROOT / "README.md").read_text().split()) <= 400


def test_the_map_for_contributors_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w./]+)`", text)
    assert named
    for file in named:
        assert (ROOT / file).exists(), f"CONTRIBUTING.md names {file}, which is not there"
    table = text.partition("## Where is …?")[2].partition("\n## ")[0]
    for row in re.findall(r"^\|.*src/.*$", table, re.MULTILINE):
        answer = row.split("|")[2]
        sources = "".join((ROOT / file).read_text() for file in re.findall(r"`(src/[\w./]+)`", answer))
        for name in re.findall(r"`([A-Za-z]\w+)`", answer):
            assert re.search(rf"(def|class) {name}\b|^{name}\b", sources, re.MULTILINE), f"{name} is not in {answer}"


def rows(text: str) -> list[list[str]]:
    """The cells of all tables of a page, without the small print."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[re.sub(r"<br>.*|\*\*", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines]


def defaults() -> dict[str, dict[str, str]]:
    """The evidence's table of the default beside the plain loss: its cells by family and column."""
    heads, *table = rows(
        (ROOT / "docs/evidence.md").read_text().split("The default, as a user of the library gets it")[1]
    )
    return {cells[0]: dict(zip(heads, cells, strict=True)) for cells in table[1:] if len(cells) == len(heads)}


@pytest.mark.parametrize(
    ("row", "family"),
    [
        ("paths, relaxed Bellman-Ford (4)", "Bellman-Ford"),
        ("paths, smoothed loss (3)", "Smoothed loss"),
        ("paths, smoothed algorithm (3)", "Smoothed algorithm"),
        ("paths, Fenchel-Young (3)", "Fenchel-Young"),
        ("sorting ten numbers (4)", "Sorting, n=10"),
    ],
)
def test_figures_of_the_readme_are_those_of_the_evidence(row: str, family: str) -> None:
    measured = defaults()[family]
    said = next(cells for cells in rows((ROOT / "README.md").read_text()) if cells[0] == row)
    figures = [measured[name] for name in ("plain", "normalised only", "the default")]
    assert said[1:] == ["–" if figure == "not run" else figure for figure in figures]
    assert measured["ahead"].endswith(f" of {row[-2]}")


def test_the_count_of_the_readme_is_that_of_the_evidence() -> None:
    """How often the default is clearly ahead of the plain loss on generated maps, with the same smoothing."""
    maps = [cells for family, cells in defaults().items() if not family.startswith("Sorting")]
    ahead, settings = (sum(int(cells["ahead"].split(" of ")[place]) for cells in maps) for place in (0, 1))
    assert all(cells["behind"].startswith("0 of ") for cells in maps)
    for page in ("README.md", "docs/index.md"):
        assert f"in {ahead} of {settings} settings" in (ROOT / page).read_text()


def public_names(module: ModuleType) -> dict[str, object]:
    """What a package exports (`import X as X`) or a module defines, without modules and constants in capitals."""
    if hasattr(module, "__path__"):
        exports = (node for node in ast.walk(ast.parse(getsource(module))) if isinstance(node, ast.ImportFrom))
        names = [alias.name for node in exports for alias in node.names if alias.name == alias.asname]
    else:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    found = {name: getattr(module, name) for name in names if not name.startswith("_") and not name.isupper()}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


ROOMS = ("sorting", "paths", "smoothing", "perturbed", "convex", "diagnose", "curvature", "errors")


def documented() -> dict[str, object]:
    """Each `::: name` of the reference with the object it stands for, and the members of modules that are named."""
    found: dict[str, object] = {}
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    for path in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE):
        module, _, name = path.rpartition(".")
        if module == "newton_losses" and name in ROOMS:
            whole = importlib.import_module(path)
            found |= {f"{path}.{member}": value for member, value in public_names(whole).items()}
        else:
            found[path] = getattr(importlib.import_module(module), name)
    return found


@pytest.mark.parametrize("module", ["newton_losses", *(f"newton_losses.{room}" for room in ROOMS)])
def test_the_reference_has_every_public_name(module: str) -> None:
    on_pages = [(path.rpartition(".")[2], value) for path, value in documented().items()]
    missing = [
        name
        for name, value in public_names(importlib.import_module(module)).items()
        if not any(name == other and value is found for other, found in on_pages)
    ]
    assert not missing, (
        f"the reference lacks {missing} of {module}: add `::: {module}.NAME` to a page of docs/reference"
    )


@pytest.mark.parametrize("room", ["", *(room for room in ROOMS if room not in ("curvature", "errors"))])
def test_every_parameter_has_a_row_in_its_table(room: str) -> None:
    with_table = pytest.importorskip("parameters").with_table
    things: dict[str, Any] = {}
    for name, value in public_names(importlib.import_module(f"newton_losses.{room}".rstrip("."))).items():
        # Not types, errors, and results whose fields are listed.
        is_result = is_dataclass(value) or hasattr(value, "_fields") or hasattr(value, "__required_keys__")
        if isfunction(value) or (isclass(value) and not issubclass(value, Exception) and not is_result):
            things[name] = value
        if isclass(value) and issubclass(value, torch.nn.Module) and value.forward is not torch.nn.Module.forward:
            things[f"{name}.forward"] = value.forward
    for owner, thing in things.items():
        names = [name for name in signature(thing).parameters if name not in ("self", "args", "kwargs")]
        _, missing = with_table(getdoc(thing) or "", names, owner)
        assert not missing, f"{owner} does not explain {missing}: add it to its docstring or docs/parameters.toml"


def test_formulas_can_be_drawn() -> None:
    mathml = pytest.importorskip("formulas").mathml
    found = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for block, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", text, re.DOTALL):
            assert "<math" in mathml(block or inline, block=bool(block))
            found += 1
    assert found > 50


def test_the_list_of_names_leads_to_each_of_them() -> None:
    listed = set(re.findall(r"\]\[([\w.]+)\]", (REFERENCE / "index.md").read_text()))
    # Those of authors of losses have a page, but no place in the list.
    wanted = {path for path in documented() if not path.startswith("newton_losses.curvature.")}
    assert listed == wanted
