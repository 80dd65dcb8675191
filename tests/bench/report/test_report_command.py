"""`newton-losses report` as it is called."""

import json

from run_folders import write_cell
from typer.testing import CliRunner

from newton_losses_bench.cells import cells
from newton_losses_bench.cli.app import app


def command(*words):
    done = CliRunner().invoke(app, ["report", *words], prog_name="newton-losses", terminal_width=200)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_it_says_where_the_page_is(tmp_path):
    cell = cells("table1", only="softsort-n5-fisher")[0]
    write_cell(tmp_path / "results", cell, {"exact_match": 80.0, "element_wise": 90.0}, steps=10_000)
    code, text = command("--results", str(tmp_path / "results"), "--out", str(tmp_path / "site"), "--json")
    assert code == 0
    found = json.loads(text)
    assert found["page"] == str(tmp_path / "site" / "index.html")
    assert "3 finished runs" in (tmp_path / "site" / "index.html").read_text()
    # The page is written over, and says the same.
    before = (tmp_path / "site" / "index.html").read_bytes()
    code, text = command("--results", str(tmp_path / "results"), "--out", str(tmp_path / "site"))
    assert code == 0
    assert text.splitlines()[0].startswith("reading the runs")
    assert text.splitlines()[-1].startswith(found["page"])
    assert (tmp_path / "site" / "index.html").read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path):
    code, text = command("--results", str(tmp_path / "nowhere"), "--out", str(tmp_path / "site"))
    assert code == 2
    assert "there is no such folder" in text
    assert not (tmp_path / "site").exists()


def test_a_site_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    code, text = command("--results", str(tmp_path), "--out", str(tmp_path / "file"))
    assert code == 2
    assert "could not be written" in text
