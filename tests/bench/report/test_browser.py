"""The pages in a real browser: no complaint, no request, sorting by a click, no sideways scrolling, light and dark."""

import re

import pytest
from run_folders import results_and_page, write_run

from chromium import Browser, needs_chromium
from newton_losses_bench.cells import cells
from newton_losses_bench.report import write_report

HOSTILE = "<script>alert(1)</script>"
pytestmark = needs_chromium
SIZES = {"phone": 390, "small phone": 320, "tablet": 800, "desktop": 1280}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return results_and_page(tmp_path_factory)[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def columns(browser, table):
    """The texts of a table's cells, row by row."""
    rows = f"[...document.querySelectorAll('#{table} tbody tr')]"
    return browser.evaluate(f"{rows}.map(row => [...row.cells].map(cell => cell.textContent.trim()))")


def click(browser, table, column):
    browser.evaluate(f"document.querySelectorAll('#{table} thead button')[{column}].click()")


def sort_state(browser, table):
    heads = f"[...document.querySelectorAll('#{table} thead th')]"
    return browser.evaluate(f"{heads}.map(head => head.getAttribute('aria-sort'))")


def unfold(browser):
    browser.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")


def test_page_loads_without_a_complaint_or_a_request(browser, site):
    browser.open(site / "index.html")
    unfold(browser)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [(site / "index.html").as_uri()]
    assert browser.evaluate("document.title") == "Newton losses: does it hold up?"


def test_links_resolve_and_open_their_section(browser, site):
    browser.open(site / "index.html")
    broken = "[...document.links].filter(one => !document.getElementById(one.hash.slice(1))).map(one => one.href)"
    assert browser.evaluate(broken) == []
    browser.evaluate("document.querySelector('nav a[href=\"#controls\"]').click()")
    ready = "new Promise(done => setTimeout(() => done(document.querySelector('#controls details').open), 50))"
    answer = browser.send("Runtime.evaluate", expression=ready, awaitPromise=True, returnByValue=True)
    assert answer["result"]["value"] is True
    # The navigation stays where it can be seen.
    assert browser.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0


def test_click_on_a_head_sorts_by_its_numbers(browser, site):
    browser.open(site / "index.html")
    table = "table1-figures"
    before = columns(browser, table)
    click(browser, table, 3)
    rising = columns(browser, table)
    figures = [float(row[3].split()[0]) for row in rising if row[3] != "not run"]
    assert figures == sorted(figures)
    assert len(figures) == 20
    assert [row[3] for row in rising[20:]] == ["not run"] * (len(before) - 20)
    assert sort_state(browser, table)[3] == "ascending"
    click(browser, table, 3)
    falling = columns(browser, table)
    assert [float(row[3].split()[0]) for row in falling[:20]] == figures[::-1]
    assert falling[-1][3] == "not run"
    assert sort_state(browser, table)[3] == "descending"
    assert sorted(before) == sorted(falling)


def test_words_sort_as_words_and_one_column_at_a_time(browser, site):
    browser.open(site / "index.html")
    click(browser, "table3", 2)
    click(browser, "table3", 0)
    names = [row[0] for row in columns(browser, "table3")]
    assert names == sorted(names, key=str.casefold) or len(set(names)) == 9
    assert [state for state in sort_state(browser, "table3") if state] == ["ascending"]


@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES)
def test_page_never_scrolls_sideways(browser, site, width):
    browser.open(site / "index.html", width=width, height=700)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    unfold(browser)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    # What is too wide is in a box that scrolls by itself, and can be reached with the keyboard.
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert browser.evaluate(f"{boxes}.every(box => box.tabIndex === 0 && box.scrollWidth >= box.clientWidth)")


def test_the_first_screen_has_the_chart_and_all_verdicts(browser, site):
    browser.open(site / "index.html", width=1280, height=900)
    assert browser.evaluate("document.querySelector('.chart').getBoundingClientRect().bottom") <= 900
    below = "[...document.querySelectorAll('.status')].filter(one => one.getBoundingClientRect().bottom > 900).length"
    assert browser.evaluate(below) == 0


def contrast(first, second):
    """The contrast ratio of two colours `rgb(r, g, b)`, as the accessibility guidelines define it."""

    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("toggled", [False, True], ids=["the system's", "the other one"])
def test_colours_follow_the_scheme_and_the_button(browser, site, dark, toggled):
    browser.open(site / "index.html", dark=dark)
    if toggled:
        browser.evaluate("document.getElementById('scheme').click()")
    unfold(browser)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(paper, "rgb(0, 0, 0)") < 2) == (dark is not toggled)
    for selector in (
        "body",
        "small",
        "caption",
        "nav a",
        ".absent",
        ".significant",
        ".confirmed",
        ".unconfirmed",
        ".open",
    ):
        ink = browser.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color")
        assert contrast(ink, paper) >= 4.5, selector
    label = browser.evaluate("getComputedStyle(document.querySelector('.chart text')).fill")
    assert contrast(label, paper) >= 4.5
    for tone in range(4):
        line = browser.evaluate(f"getComputedStyle(document.querySelector('.legend .tone-{tone} i')).color")
        assert contrast(line, paper) >= 3, tone


def test_statuses_differ_in_more_than_colour(browser, site):
    browser.open(site / "index.html")
    texts = browser.evaluate("[...new Set([...document.querySelectorAll('.status')].map(one => one.textContent))]")
    assert set(texts) == {"confirmed", "not confirmed", "open"}
    assert browser.evaluate("[...document.querySelectorAll('svg')].every(svg => svg.getAttribute('aria-label'))")
    assert browser.evaluate("[...document.querySelectorAll('table')].every(table => table.caption.textContent)")


def test_hostile_names_run_nothing(browser, tmp_path):
    config = cells("table1", only="softsort-n5-baseline")[0].make(seed=0, steps=10_000, device="cpu")
    name = "<img src=x onerror=alert(1)>"
    write_run(
        tmp_path / name / "run",
        config,
        {HOSTILE: 1.0},
        changes={"algorithm": HOSTILE, "data": '"><svg onload=alert(1)>'},
    )
    write_report(tmp_path, tmp_path / "report")
    browser.open(tmp_path / "report" / "index.html")
    assert browser.complaints == []
    assert [row[0] for row in columns(browser, "folders")] == [name]


def test_print_has_no_navigation(browser, site):
    browser.open(site / "index.html")
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.send("Emulation.setEmulatedMedia", media="")
