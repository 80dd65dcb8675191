"""The gallery: each docs/gallery/*.py is a notebook, a hook of mkdocs runs it, and shows it as a page and as an .ipynb.

A notebook is a Python file in the percent format, which editors open as cells: `# %% [markdown]` begins text, `# %%`
code. A code cell may carry what the page needs: `alt="…"` describes its picture, `tags=["cover"]` chooses the picture
of the index, and `short="STEPS = 2"` is run after the cell in shortened runs. The environment variable
NEWTON_LOSSES_GALLERY says what a build runs: all of it (the default), "short", or "off" for pages without results.
Results are kept in .cache/gallery until the notebook or the library changes.

    python docs/notebooks.py docs/gallery/quick-start.py FOLDER    # runs one, and leaves its results in FOLDER
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "gallery"
CACHE = ROOT / ".cache" / "gallery"
MODE = "NEWTON_LOSSES_GALLERY"
INSTALL = "pip install 'newton-losses[bench]' notebook"
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 200,  # of pictures inside of drawings, such as maps
    "font.size": 11,
    "legend.frameon": False,
}
_KEY = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\[[^\]]*\])')
_INDEX = re.compile(r"<!-- notebooks: (.*?) -->", re.DOTALL)
_log = logging.getLogger("mkdocs.hooks.gallery")


@dataclass(frozen=True)
class Cell:
    """Text or code, the line of the file where it begins, and what its header says."""

    is_code: bool
    source: str
    line: int
    header: dict[str, Any] = field(default_factory=dict)


def read_cells(path: Path) -> list[Cell]:
    """The cells of a notebook; text without the `# ` in front of its lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    cells = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[start + 1 : end]
        is_code = "[markdown]" not in lines[start]
        if not is_code:
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        header = {key: json.loads(value) for key, value in _KEY.findall(lines[start])}
        cells.append(Cell(is_code, "\n".join(body).strip("\n"), start + 1, header))
    return cells


def title_and_summary(cells: list[Cell]) -> tuple[str, str]:
    """The first heading, and the first paragraph below it."""
    heading, summary = cells[0].source.split("\n\n")[:2]
    return heading.removeprefix("# "), summary.replace("\n", " ")


# Running ------------------------------------------------------------------------------------------------------------


def run_notebook(path: Path, out: Path, *, short: bool = False) -> dict[str, Any]:
    """Run the cells in order, as Jupyter would; texts go to out/outputs.json, pictures beside it. Returns the names."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    import ink

    names: dict[str, Any] = {"__name__": "__main__"}
    outputs: list[dict[str, Any]] = []
    begin = time.process_time()
    with ink.drawing(), plt.rc_context(STYLE), warnings.catch_warnings():
        # A page that shows a warning is a page to correct; what others deprecate is not for the reader.
        warnings.simplefilter("error")
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        for number, cell in enumerate(read_cells(path)):
            printed, picture = io.StringIO(), None
            if cell.is_code:
                with contextlib.redirect_stdout(printed):
                    # Padded, so that a traceback has the line of the file.
                    exec(compile("\n" * cell.line + cell.source, str(path), "exec"), names)
                    if short:
                        exec(cell.header.get("short", ""), names)
                figures = [plt.figure(figure) for figure in plt.get_fignums()]
                if len(figures) > 1 or (figures and "alt" not in cell.header):
                    raise ValueError(
                        f"{path.name}:{cell.line}: a cell draws one picture at most, with alt in its header"
                    )
                if figures:
                    picture = f"{path.stem}-{number}"
                    figures[0].savefig(out / f"{picture}.png", dpi=80, facecolor="white")  # for the .ipynb
                    ink.save(figures[0], out / f"{picture}.svg", cell.header["alt"])  # for the page
                plt.close("all")
            outputs.append({"text": printed.getvalue().rstrip(), "picture": picture})
    results = {"seconds": round(time.process_time() - begin, 1), "outputs": outputs}
    (out / "outputs.json").write_text(json.dumps(results, ensure_ascii=False), encoding="utf-8")
    return names


def results_of(path: Path, mode: str = "") -> Path:
    """The folder with a notebook's results, its page and its .ipynb; from the cache where nothing has changed."""
    kept = CACHE / f"{path.stem}.{mode or 'full'}.{_fingerprint(path)}"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        cells = read_cells(path)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            out = Path(temporary) / "results"
            out.mkdir()
            if mode == "off":
                nothing = {"seconds": None, "outputs": [{"text": "", "picture": None} for _ in cells]}
                (out / "outputs.json").write_text(json.dumps(nothing), encoding="utf-8")
            else:
                _run_in_a_process(path, out, mode)
            (out / f"{path.stem}.md").write_text(as_page(path.stem, cells, out), encoding="utf-8")
            (out / f"{path.stem}.ipynb").write_text(as_ipynb(cells, out), encoding="utf-8")
            with contextlib.suppress(OSError):  # another build was faster
                out.rename(kept)
        for old in CACHE.glob(f"{path.stem}.{mode or 'full'}.*"):
            if old != kept:
                shutil.rmtree(old, ignore_errors=True)
    return kept


def _run_in_a_process(path: Path, out: Path, mode: str) -> None:
    command = [sys.executable, __file__, str(path), str(out), mode]
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path.name} does not run:\n{done.stderr}")
    _log.info("gallery: ran %s in %s s of processor time", path.name, _outputs(out)["seconds"])


def _outputs(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "outputs.json").read_text(encoding="utf-8"))
    return found


def _fingerprint(path: Path) -> str:
    """Of all that the results depend on: the notebook, how it is run and drawn, both packages, torch, matplotlib."""
    found = hashlib.sha256()
    docs = Path(__file__).parent
    for file in (path, docs / "notebooks.py", docs / "ink.py", *sorted((ROOT / "src").rglob("*.py"))):
        found.update(file.read_bytes())
    for package in ("torch", "matplotlib"):
        found.update(importlib.metadata.version(package).encode())
    return found.hexdigest()[:16]


# Writing ------------------------------------------------------------------------------------------------------------


def as_ipynb(cells: list[Cell], results: Path) -> str:
    """The notebook with its outputs, as Jupyter stores it. Links to pages of the site become their text."""
    written = []
    for number, (cell, output) in enumerate(zip(cells, _outputs(results)["outputs"], strict=True)):
        one: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if cell.is_code:
            shown: list[dict[str, Any]] = []
            if output["text"]:
                shown.append({"output_type": "stream", "name": "stdout", "text": output["text"] + "\n"})
            if output["picture"]:
                picture = b64encode((results / f"{output['picture']}.png").read_bytes()).decode()
                data = {"image/png": picture, "text/plain": cell.header["alt"]}
                shown.append({"output_type": "display_data", "data": data, "metadata": {}})
            # Jupyter shows what a last expression returns, unless a semicolon ends it.
            quiet = ";" if isinstance(ast.parse(cell.source).body[-1], ast.Expr) else ""
            one |= {"cell_type": "code", "execution_count": None, "source": cell.source + quiet, "outputs": shown}
        else:
            text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!\w+://)[^)]*\)", r"\1", cell.source)
            one |= {"cell_type": "markdown", "source": text + (f"\n\n`{INSTALL}`" if number == 0 else "")}
        written.append(one)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, ensure_ascii=False)


def as_page(name: str, cells: list[Cell], results: Path) -> str:
    """The notebook as Markdown: text, code, and below it what it printed and drew."""
    found = _outputs(results)
    parts = []
    for number, (cell, output) in enumerate(zip(cells, found["outputs"], strict=True)):
        if cell.is_code:
            parts.append(f"```python\n{cell.source}\n```")
            if output["text"]:
                parts.append(f"``` {{ .text .output .no-copy }}\n{output['text']}\n```")
            if output["picture"]:
                parts.append(f"![{cell.header['alt']}]({output['picture']}.svg)")
        else:
            parts.append(cell.source)
        if number == 0:
            parts.append(f"[Download the notebook]({name}.ipynb){{ .md-button download }}\n{{ .download }}")
    if found["seconds"] is not None:
        parts.append(f"*Run when this page was built, in {found['seconds']:.0f} s of processor time.*")
    parts.append(f"*To run it yourself: `{INSTALL}`.*")
    return "\n\n".join(parts) + "\n"


def as_card(name: str, cells: list[Cell], results: Path) -> str:
    """An entry of the index: title, picture, one sentence."""
    title, summary = title_and_summary(cells)
    number, cell = next((n, cell) for n, cell in enumerate(cells) if "cover" in cell.header.get("tags", ()))
    picture = _outputs(results)["outputs"][number]["picture"]
    shown = f"\n\n    ![{cell.header['alt']}]({picture}.svg)" if picture else ""
    return f"-   **[{title}]({name}.md)**{shown}\n\n    {summary}"


# The hook -----------------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Run what has changed, as many at once as there are cores, and add pages, pictures and downloads to the site."""
    from mkdocs.structure.files import File

    mode = os.environ.get(MODE, "")
    notebooks = sorted(FOLDER.glob("*.py"))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        folders = dict(zip(notebooks, pool.map(lambda path: results_of(path, mode), notebooks), strict=True))
    # The pictures of the index have to lie beside it, too.
    index = config.extra["gallery"] = Path(tempfile.mkdtemp(dir=CACHE))
    cards = {path.stem: as_card(path.stem, read_cells(path), results) for path, results in folders.items()}
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    (index / "index.md").write_text(_INDEX.sub(lambda match: _grid(cards, match[1].split()), text), encoding="utf-8")
    files.remove(files.get_file_from_path("gallery/index.md"))
    files.append(File.generated(config, "gallery/index.md", abs_src_path=str(index / "index.md")))
    for results in folders.values():
        for made in results.iterdir():
            if made.suffix in (".md", ".ipynb", ".svg"):
                files.append(File.generated(config, f"gallery/{made.name}", abs_src_path=str(made)))
            if made.suffix == ".svg":
                shutil.copy(made, index)
    return files


def on_post_build(config: Any) -> None:
    shutil.rmtree(config.extra["gallery"])


def _grid(cards: dict[str, str], names: list[str]) -> str:
    return '<div class="grid cards" markdown>\n\n' + "\n\n".join(cards[name] for name in names) + "\n\n</div>"


if __name__ == "__main__":
    run_notebook(Path(sys.argv[1]), Path(sys.argv[2]), short="short" in sys.argv[3:])
