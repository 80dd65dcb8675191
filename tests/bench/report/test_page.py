"""The page and its Markdown as files: whole whatever the runs' folders hold, and no name is taken for markup."""

import json
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from made_up import results_and_site
from run_folders import write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import write_report

HOSTILE = "<script>alert(1)</script>"
VOID = {"meta", "link", "br", "img", "path", "circle"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return results_and_site(tmp_path_factory)[1]


class Page(HTMLParser):
    """Whether tags are balanced, what is named and what is linked, and which tags there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        found = dict(attributes)
        self.names += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_page_is_whole_and_needs_nothing_else(site):
    text = (site / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    assert len(page.names) == len(set(page.names))
    assert all(link == "data:," or link.removeprefix("#") in page.names for link in page.links)
    assert "src" not in page.attributes
    assert not re.search(r"url\(|@import|https?://", text)


def test_figures_are_files_that_markdown_names(site):
    named = re.findall(r"\]\((figures/[^)]+)\)", (site / "report.md").read_text())
    assert sorted(named) == sorted(str(path.relative_to(site)) for path in site.glob("figures/*"))
    for name in named:
        root = ElementTree.parse(site / name).getroot()
        assert root.tag.endswith("svg")
        assert root.get("aria-label")
        assert "prefers-color-scheme: dark" in ElementTree.tostring(root, encoding="unicode")


def test_names_are_text_and_never_markup(tmp_path):
    """In the names of folders, in configurations, in environments, in files beside the runs."""
    cell = cells("table1", only="softsort-n5-baseline")[0]
    config = cell.make(seed=0, steps=10_000, device="cpu")
    test = {"exact_match": 50.0, "element_wise": 70.0}
    hostile = HOSTILE.replace("/", "\u2215")  # a folder's name cannot hold a slash
    write_run(tmp_path / hostile / f'"><img onerror=x>{hostile}', config, test)
    changes = {"algorithm": HOSTILE, "data": f"'\"{HOSTILE}|a", "numerics": "`<b>`"}
    write_run(tmp_path / "odd", config, {f"{HOSTILE}": 1.0}, changes=changes)
    write_run(tmp_path / "begun", config, test, finished=False, changes={"algorithm": HOSTILE, "seed": 9})
    folder = write_run(tmp_path / "machine", cell.make(seed=1, steps=10_000, device="cpu"), test)
    stored = json.loads((folder / "config.json").read_text())
    stored["environment"] = {"gpu": HOSTILE, "torch": HOSTILE, "commit": HOSTILE}
    (folder / "config.json").write_text(json.dumps(stored))
    line = "sorting n=5 softsort none 1.0 ms/step\nsorting n=5 softsort fisher 1.1 ms/step\n"
    (tmp_path / f"step_{hostile}.txt").write_text(f"torch, {HOSTILE}, x\n{line}")
    (tmp_path / "cvxpy").mkdir()
    losses = {"runs": [{"seed": 0, "baseline": [1.0], "fisher": [0.5]}]}
    (tmp_path / "cvxpy" / f"{hostile}.json").write_text(json.dumps(losses))
    out = tmp_path / "site"
    write_report(tmp_path, out)
    text = (out / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert "onerror" not in page.attributes
    assert text.count("&lt;script&gt;") > 8
    assert not re.search(r"(?<!\\)<(?!\\)", re.sub(r"`[^`]*`", "", (out / "report.md").read_text()))
    assert not any("<" in str(path.relative_to(out)) for path in out.rglob("*"))


def test_one_bad_folder_does_not_spoil_the_report(tmp_path):
    """Every setting replaced by every kind of nonsense: the run counts or is left out, and the page is written."""
    nonsense = ("<x>", "\ud800", None, {"a": 1}, [1, [2]], -1, 10**400, float("inf"), float("nan"), True)
    for cell in (cells("table1", only="softsort-n5-fisher")[0], cells("table3", only="fenchel-young-3-hessian")[0]):
        config = cell.make(seed=0, device="cpu")
        for name in config.to_dict():
            for number, value in enumerate(nonsense):
                folder = tmp_path / "results" / f"{cell.key}-{name}-{number}"
                write_run(folder, config, {"exact_match": 50.0, "perfect_match": value if value is True else 40.0})
                for file in ("config.json", "result.json"):
                    content = json.loads((folder / file).read_text())
                    content["configuration"][name] = value
                    (folder / file).write_text(json.dumps(content))
    write_report(tmp_path / "results", tmp_path / "site")
    assert Page((tmp_path / "site" / "index.html").read_text()).open == []


def test_runs_without_a_figure_are_named_and_left_out(tmp_path):
    for cell in cells("ablation", only="softsort-n5-fisher"):
        for seed in range(3):
            value = math.nan if seed == 1 else 80.0
            config = cell.make(seed=seed, steps=10_000, device="cpu")
            write_run(tmp_path / f"{cell.key}-{seed}", config, {"exact_match": value, "element_wise": value})
    write_report(tmp_path, tmp_path / "site")
    text = (tmp_path / "site" / "index.html").read_text()
    assert Page(text).open == []
    assert not re.search(r' d="[^"]*nan', text)
    assert "26 finished runs" in text
    assert text.count("Left out: ") == 13
