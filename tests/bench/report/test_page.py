"""The page, its Markdown and the documentation's evidence as files, and the command that writes them."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_folders import results_and_page, write_cell, write_run
from typer.testing import CliRunner

from newton_losses.errors import ArgumentError
from newton_losses_bench.cells import cells
from newton_losses_bench.cli.app import app
from newton_losses_bench.report import compose, gather, to_markdown, write_evidence, write_report

REPOSITORY = Path(__file__).parents[3]
HOSTILE = "<script>alert(1)</script>"
VOID = {"meta", "link", "br", "img", "path", "use"}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return results_and_page(tmp_path_factory)[1]


class Page(HTMLParser):
    """Whether tags are balanced, what is named and linked, and which tags and attributes there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

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


def test_page_is_whole_and_needs_nothing_else(page):
    text = (page / "index.html").read_text()
    found = Page(text)
    assert found.open == []
    assert len(found.names) == len(set(found.names))
    assert all(link == "data:," or link.removeprefix("#") in found.names for link in found.links)
    assert "src" not in found.attributes
    assert not re.search(r"url\((?!#)|@import|https?://", text)


def test_the_first_screen_answers_and_the_rest_is_folded(page):
    text = (page / "index.html").read_text()
    start, rest = text.split("<section", 1)
    assert "Does it hold up" in start or "does it hold up" in start
    assert start.count('class="status ') == 25
    assert "<svg" in start
    assert "<table" not in start
    assert not re.search(r"<details open", rest)


def test_bands_are_within_their_figure(page):
    """Every point of a band lies inside the axes: a band that is cut off would look narrower than it is."""
    charts = re.findall(r"<svg.*?</svg>", (page / "index.html").read_text(), flags=re.DOTALL)[1:]
    assert len(charts) > 20
    for text in charts:
        top, height = map(
            float, re.search(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', text).groups()
        )
        bands = re.findall(r'<path d="([^"]+)"[^>]*style="fill: [^"]*opacity: 0.16', text)
        assert bands
        heights = [float(y) for band in bands for _, y in re.findall(r"([-\d.]+) ([-\d.]+)", band)]
        assert min(heights) >= top
        assert max(heights) <= top + height


def test_a_single_seed_is_no_interval(tmp_path):
    (cell,) = cells("table1", only="softsort-n5-baseline-stable")
    write_cell(tmp_path, cell, {"exact_match": 50.0}, seeds=1, steps=100_000)
    (section,) = (one for one in compose(gather(tmp_path)).sections if one.anchor == "curves")
    ((caption, (figure,)),) = section.figures
    assert caption == "Ranking, 100,000 steps"
    assert figure.legend[0][0].endswith("(1 seed)")
    assert "opacity" not in figure.svg


def test_names_are_text_and_never_markup(tmp_path):
    """In the names of folders, in configurations, in environments, in files beside the runs."""
    cell = cells("table1", only="softsort-n5-baseline")[0]
    config = cell.make(seed=0, steps=10_000, device="cpu")
    test = {"exact_match": 50.0, "element_wise": 70.0}
    hostile = HOSTILE.replace("/", "\u2215")  # a folder's name cannot hold a slash
    write_run(tmp_path / hostile / f'"><img onerror=x>{hostile}', config, test)
    changes = {"algorithm": HOSTILE, "data": f"'\"{HOSTILE}|a", "numerics": "`<b>`"}
    write_run(tmp_path / "odd", config, {f"{HOSTILE}": 1.0}, changes=changes)
    write_run(tmp_path / hostile / "begun", config, test, finished=False, changes={"algorithm": HOSTILE, "seed": 9})
    folder = write_run(tmp_path / "machine", cell.make(seed=1, steps=10_000, device="cpu"), test)
    stored = json.loads((folder / "config.json").read_text())
    stored["environment"] = {"gpu": HOSTILE, "torch": HOSTILE, "commit": HOSTILE}
    (folder / "config.json").write_text(json.dumps(stored))
    write_report(tmp_path, tmp_path / "report")
    write_evidence(tmp_path, tmp_path / "report" / "evidence.md")
    text = (tmp_path / "report" / "index.html").read_text()
    found = Page(text)
    assert found.open == []
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert "onerror" not in found.attributes
    assert text.count("&lt;script&gt;") > 3
    markdown = (tmp_path / "report" / "evidence.md").read_text()
    assert markdown.count(r"\<script\>") > 3
    markdown = re.sub(r"</?(details|summary|small|br)[^>]*>", "", markdown)
    assert not re.search(r"(?<!\\)<(?!\\)", markdown)
    assert not any("<" in path.name for path in (tmp_path / "report").rglob("*"))


def test_evidence_is_whole(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    write_cell(tmp_path / "results", cell, {"exact_match": 80.0, "element_wise": 90.0}, steps=10_000)
    page, picture = write_evidence(tmp_path / "results", tmp_path / "docs" / "evidence.md")
    text = page.read_text()
    assert text.startswith("# Evidence\n")
    assert text.count("<details") == text.count("</details>")
    assert f"]({picture.relative_to(page.parent)})" in text
    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert root.get("aria-label").startswith("Table 1: NeuralSort n=5, the paper: 84")
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) > 5
    for table in tables:  # nothing between the rows, and as many cells in each
        assert len({re.sub(r"\\\|", "", line).count("|") for line in table.splitlines()}) == 1


@pytest.mark.skipif(not (REPOSITORY / "results").is_dir(), reason="the source distribution has no results")
def test_the_evidence_is_that_of_the_results():
    began = time.process_time()
    text = to_markdown(compose(gather(REPOSITORY / "results")))
    assert time.process_time() - began < 5, "nobody waits longer for a report"
    found = (REPOSITORY / "docs" / "evidence.md").read_text()
    assert found == text, "run newton-losses report --evidence docs/evidence.md"


def report(*words):
    done = CliRunner().invoke(app, ["report", *words], prog_name="newton-losses", terminal_width=200)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_the_command_says_where_the_page_is(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    write_cell(tmp_path / "results", cell, {"exact_match": 80.0, "element_wise": 90.0}, steps=10_000)
    places = ("--results", str(tmp_path / "results"), "--out", str(tmp_path / "report"))
    code, text = report(*places, "--json")
    assert code == 0
    found = json.loads(text)
    assert found["page"] == str(tmp_path / "report" / "index.html")
    before = Path(found["page"]).read_bytes()
    assert b"3 finished runs" in before
    # The page is written again, and says the same.
    code, text = report(*places)
    assert code == 0
    assert text.splitlines()[0].startswith("reading the runs")
    assert found["page"] in text.splitlines()[-1]
    assert Path(found["page"]).read_bytes() == before
    code, text = report("--results", str(tmp_path / "results"), "--evidence", str(tmp_path / "evidence.md"))
    assert (code, (tmp_path / "evidence.md").exists()) == (0, True)


def test_runs_of_other_lengths_are_counted(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    results, figures = tmp_path / "results", {"exact_match": 80.0, "element_wise": 90.0}
    write_cell(results, cell, figures, steps=1_000)
    places = ("--results", str(results), "--out", str(tmp_path / "report"))
    sentence = (
        "3 runs are not shown in the tables, which hold 100,000 and 10,000 steps on MNIST and 50 epochs: 3 of 1,000 "
        "steps, mnist, float32. `newton-losses reproduce list` lists them."
    )
    assert report(*places)[1].splitlines()[-2] == sentence
    text = (tmp_path / "report" / "index.html").read_text()
    assert sentence in text
    assert "most figures" not in text
    assert json.loads(report(*places, "--json")[1])["notes"] == [sentence]
    # They are counted beside runs that are shown, and again not without reason.
    write_cell(results, cell, figures, seeds=2, steps=10_000)
    write_cell(results, cell, figures, seeds=1, steps=10_000, batch_size=50)
    found = compose(gather(results))
    assert found.state.count("most figures are of 10,000 steps, with two seeds") == 1
    assert found.apart[0].startswith("4 runs are not shown")
    assert "1 of 10,000 steps, mnist, float32, batch size 50." in found.apart[0]


def test_what_most_figures_are_of_is_not_said_where_it_is_not_so(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    write_cell(tmp_path, cell, {"exact_match": 80.0}, seeds=1, steps=100_000)
    found = compose(gather(tmp_path))
    assert "most figures" not in found.state
    assert found.apart == []
    assert found.sections[-1].answer == "1 finished run, 0 unfinished."


def test_a_folder_that_is_not_there(tmp_path):
    code, text = report("--results", str(tmp_path / "nowhere"), "--out", str(tmp_path / "report"))
    assert code == 2
    assert "there is no such folder" in text
    assert not (tmp_path / "report").exists()
    with pytest.raises(ArgumentError, match="nowhere: there is no such folder"):
        write_report(tmp_path / "nowhere", tmp_path / "report")
