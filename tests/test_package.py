"""What is shipped: a source distribution whose tests can run, and extras that bring what the code imports."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import newton_losses

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What is installed under another name than it is imported by, and what comes with another package.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "triton": "torch", "markupsafe": "jinja2"}
OURS = {"newton_losses", "newton_losses_bench"}


def test_the_source_distribution_is_the_whole_repository_but_the_results() -> None:
    """Its tests run the documentation and the examples; the results are large, and skipped where they are missing."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    kept = {Path(file).parts[0] for file in listed.stdout.splitlines()}
    shipped = {name.removeprefix("/") for name in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    # The builder always adds the last two.
    assert kept - {"results", ".gitignore", "pyproject.toml"} == shipped


def test_the_version_is_the_same_everywhere() -> None:
    version = re.escape(newton_losses.__version__)
    assert re.search(rf"^## {version} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~!]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize(
    ("folder", "extra"), [("src/newton_losses", None), ("src/newton_losses_bench", "bench"), ("docs/gallery", "bench")]
)
def test_what_is_imported_is_required(folder: str, extra: str | None) -> None:
    """scipy came with scikit-learn, and nobody had asked for it. Notebooks run with the extra `bench` alone."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    required = names(project["dependencies"]) | names(extras[extra] if extra else [])
    optional = names(extras["numba"]) | (set() if extra else {"matplotlib"})  # looked for where they are used
    if folder == "docs/gallery":
        optional = set()
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        missing = {DISTRIBUTIONS.get(name, name) for name in imported(file)} - required - optional
        assert not missing, f"{file.relative_to(ROOT)} imports {missing}"


def imported(file: Path) -> set[str]:
    """The packages of others that a file imports, at its top or where they are used."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return {module.split(".")[0] for module in modules} - sys.stdlib_module_names - OURS
