"""The notebooks of the gallery run: shortened here, and in full among the slow tests, which check what their text says.

A text has no figures of its own, but it says which loss wins and which does not. `CLAIMS` holds these sentences: if one
fails, rewrite the notebook.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import notebooks
from notebooks import (
    FOLDER,
    ROOT,
    Cell,
    as_card,
    as_ipynb,
    as_page,
    read_cells,
    results_of,
    run_notebook,
    title_and_summary,
)

NOTEBOOKS = sorted(FOLDER.glob("*.py"))
Names = dict[str, Any]


def last(names: Names) -> dict[str, float]:
    """The mean over seeds at the end of training, for each loss that was compared."""
    return {name: curve[:, -1].mean().item() for name, curve in names["curves"].items()}


def quick_start(names: Names) -> None:
    found = last(names)
    assert found["Newton"] > found["plain"]
    assert found["normalised"] > found["plain"]
    assert abs(found["Newton"] - found["normalised"]) < 0.02, "the two are level"


def what_it_does(names: Names) -> None:
    found = {name: losses.mean().item() for name, losses in names["best"].items()}
    for newton in ("Newton, Fisher", "Newton, Hessian"):
        assert found[newton] < 0.75 * found["plain"], "far below"
        assert found[newton] < found["only rescaled"]
    assert found["only rescaled"] - found["Newton, Fisher"] < 0.3 * (found["plain"] - found["Newton, Fisher"]), "little"


def terrain(names: Names) -> None:
    found = last(names)
    assert min(found.values()) > 0.25, "it learns"
    assert max(found.values()) - min(found.values()) < 0.06, "the three are level"
    medians = [names["np"].median(names["costs"][names["hidden"] == cost]) for cost in names["kinds_of_ground"]]
    assert max(medians[:2]) < medians[2] < min(medians[3:])


def sorting_from_scratch(names: Names) -> None:
    share = {
        name: (track[-1].argsort(1) == names["wanted"]).all(1).float().mean() for name, track in names["tracks"].items()
    }
    assert share["SoftSort, ours"] < 0.3, "can hold each other in place"
    assert share["NeuralSort"] == 1, "gets through"
    assert names["difference"] < 1e-5


def black_box_solver(names: Names) -> None:
    found = last(names)
    smoothed = [value for name, value in found.items() if name.startswith("smoothed")]
    assert max(smoothed) - min(smoothed) < 0.05, "the curvature changes little"
    assert found["Fenchel-Young"] > max(smoothed) + 0.1


def diagnosing(names: Names) -> None:
    found = {name: sum(map(names["test_loss"], networks)) / len(networks) for name, networks in names["best"].items()}
    by_batch = [found["Newton, by batch"], found["normalised, by batch"]]
    assert max(by_batch) < min(found["plain"], found["clipped"], found["Newton"])
    assert found["Newton"] > min(found["plain"], found["clipped"]), "the default does not help"
    assert abs(found["Newton, by batch"] - found["normalised, by batch"]) < 0.03, "level"
    assert abs(found["Newton"] - found["normalised"]) < 0.03, "level"


def learning_to_rank(names: Names) -> None:
    found = last(names)
    assert max(found.values()) - min(found.values()) < 0.03, "all end close together"
    assert min(found["ListNet"], found["pairs"]) > found["soft NDCG"]
    for name in ("soft NDCG", "ListNet"):
        assert abs(found[f"{name}, Newton"] - found[name]) < 0.005, "gain nothing"


CLAIMS: dict[str, Callable[[Names], None]] = {
    "quick-start": quick_start,
    "what-it-does": what_it_does,
    "terrain": terrain,
    "sorting-from-scratch": sorting_from_scratch,
    "black-box-solver": black_box_solver,
    "diagnosing": diagnosing,
    "learning-to-rank": learning_to_rank,
}


def name_of(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_runs_shortened(path: Path, tmp_path: Path) -> None:
    run_notebook(path, tmp_path, short=True)
    cells = read_cells(path)
    page = as_page(path.stem, cells, tmp_path)
    pictures = re.findall(r"\]\(([\w-]+\.svg)\)", page)
    assert pictures
    for picture in pictures:
        assert len((tmp_path / picture).read_text()) < 1_000_000
    written = json.loads(as_ipynb(cells, tmp_path))
    assert (written["nbformat"], len(written["cells"])) == (4, len(cells))
    assert "](../" not in json.dumps(written), "a downloaded notebook has no pages beside it"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_runs_in_full_and_says_the_truth(path: Path, tmp_path: Path) -> None:
    began = time.process_time()
    CLAIMS[path.stem](run_notebook(path, tmp_path))
    assert time.process_time() - began < 240, "two minutes on two cores"


def test_all_are_checked_and_listed_in_the_index_and_in_the_navigation() -> None:
    index = (FOLDER / "index.md").read_text()
    listed = re.search(r"<!-- notebooks: (.*?) -->", index, re.DOTALL)
    assert listed is not None
    names = {path.stem for path in NOTEBOOKS}
    assert set(listed[1].split()) == names == set(CLAIMS)
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    for name in names:
        assert f"gallery/{name}.md\n" in navigation


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_is_whole(path: Path) -> None:
    cells = read_cells(path)
    title, summary = title_and_summary(cells)
    assert len(title) < 60
    assert summary.endswith(".")
    covers = [cell for cell in cells if "cover" in cell.header.get("tags", ())]
    assert len(covers) == 1
    assert "alt" in covers[0].header
    for target in re.findall(r"\]\(([^)#\s]+)", "\n".join(cell.source for cell in cells if not cell.is_code)):
        page = path.parent / target
        assert page.exists() or page.with_suffix(".py").exists(), f"{path.name} links to {target}, which is not there"


SMALL = """\
# %% [markdown]
# # A title
#
# One sentence,
# on two lines.

# %% short="COUNT = 2"
COUNT = 3

# %% tags=["cover"] alt="A line"
import matplotlib.pyplot as plt

plt.plot(range(COUNT))
print(COUNT)
"""


def test_cells_are_read_with_their_headers(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    text, parameters, picture = read_cells(path)
    assert text == Cell(False, "# A title\n\nOne sentence,\non two lines.", 1)
    assert parameters == Cell(True, "COUNT = 3", 7, {"short": "COUNT = 2"})
    assert picture.header == {"tags": ["cover"], "alt": "A line"}
    assert title_and_summary([text, parameters, picture]) == ("A title", "One sentence, on two lines.")


@pytest.mark.parametrize(("short", "count"), [(False, 3), (True, 2)])
def test_what_a_cell_prints_and_draws_is_kept(tmp_path: Path, short: bool, count: int) -> None:
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    assert run_notebook(path, tmp_path, short=short)["COUNT"] == count
    cells = read_cells(path)
    assert f"\n{count}\n" in as_page("small", cells, tmp_path)
    cell = json.loads(as_ipynb(cells, tmp_path))["cells"][2]
    assert cell["source"].endswith("print(COUNT);"), "Jupyter shows nothing but what is printed"
    shown = cell["outputs"]
    assert shown[0]["text"] == f"{count}\n"
    assert shown[1]["data"]["text/plain"] == "A line"


def test_an_error_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(SMALL + "\n# %%\nraise KeyError(COUNT)\n")
    with pytest.raises(KeyError) as caught:
        run_notebook(path, tmp_path)
    assert caught.traceback[-1].lineno == path.read_text().splitlines().index("raise KeyError(COUNT)")


def test_a_picture_without_a_description_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(SMALL.replace(' alt="A line"', ""))
    with pytest.raises(ValueError, match=r"small.py:10: .* alt"):
        run_notebook(path, tmp_path)


def test_results_are_kept_until_the_notebook_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "CACHE", tmp_path / "cache")
    path = tmp_path / "small.py"
    path.write_text("# %%\nprint(1)\n")
    first = results_of(path, "short")
    assert json.loads((first / "outputs.json").read_text())["outputs"] == [{"text": "1", "picture": None}]
    monkeypatch.setattr(notebooks.subprocess, "run", None)  # not called again
    assert results_of(path, "short") == first
    path.write_text("# %%\nprint(2)\n")
    with pytest.raises(TypeError):  # called
        results_of(path, "short")


def test_pages_without_results_are_made_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "CACHE", tmp_path / "cache")
    path = tmp_path / "small.py"
    path.write_text(SMALL + "\n# %%\nraise KeyError(COUNT)\n")
    results = results_of(path, "off")
    assert "raise KeyError" in (results / "small.md").read_text()
    assert json.loads((results / "small.ipynb").read_text())["cells"][3]["outputs"] == []
    assert (
        as_card("small", read_cells(path), results) == "-   **[A title](small.md)**\n\n    One sentence, on two lines."
    )
    path.write_text(SMALL)
    assert results_of(path, "off") != results
    assert not results.exists()
