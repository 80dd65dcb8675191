"""The pages in a real browser: no complaint, sorting by a click, no sideways scrolling on a phone, light and dark."""

import re

import pytest
from chromium import Browser, needs_chromium
from made_up import results_and_site
from run_folders import write_run

from newton_losses_bench.cells import cells
from newton_losses_bench.report import write_report

HOSTILE = "<script>alert(1)</script>"
pytestmark = needs_chromium
SIZES = {"phone": 375, "small phone": 320, "tablet": 800, "desktop": 1200}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return results_and_site(tmp_path_factory)[1]


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
    browser.evaluate(f"document.querySelectorAll('#{table} thead tr:last-child button')[{column}].click()")


def sort_state(browser, table):
    heads = f"[...document.querySelectorAll('#{table} thead tr:last-child th')]"
    return browser.evaluate(f"{heads}.map(head => head.getAttribute('aria-sort'))")


def test_page_loads_without_a_complaint_or_a_request(browser, site):
    browser.open(site / "index.html")
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [(site / "index.html").as_uri()]
    assert browser.evaluate("document.title") == "Newton losses, measured"


def test_click_on_a_head_sorts_by_its_numbers(browser, site):
    browser.open(site / "index.html")
    before = columns(browser, "sorting-full")
    click(browser, "sorting-full", 4)
    rising = columns(browser, "sorting-full")
    figures = [float(row[4].split()[0]) for row in rising if row[4] != "not run"]
    assert figures == sorted(figures)
    assert len(figures) == 12
    assert [row[4] for row in rising[12:]] == ["not run"] * (len(before) - 12)
    assert sort_state(browser, "sorting-full")[4] == "ascending"
    click(browser, "sorting-full", 4)
    falling = columns(browser, "sorting-full")
    assert [float(row[4].split()[0]) for row in falling[:12]] == figures[::-1]
    assert falling[-1][4] == "not run"
    assert sort_state(browser, "sorting-full")[4] == "descending"
    assert sorted(before) == sorted(falling)


def test_words_sort_as_words_and_one_column_at_a_time(browser, site):
    browser.open(site / "index.html")
    click(browser, "paths-table3", 1)
    assert [row[1] for row in columns(browser, "paths-table3")][::8] == ["3", "10", "30"]
    click(browser, "paths-table3", 0)
    names = [row[0] for row in columns(browser, "paths-table3")]
    assert names == sorted(names)
    assert [state for state in sort_state(browser, "paths-table3") if state] == ["ascending"]


@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES)
def test_page_never_scrolls_sideways(browser, site, width):
    browser.open(site / "index.html", width=width, height=700)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    # What is too wide is in a box that scrolls by itself, and can be reached with the keyboard.
    boxes = "[...document.querySelectorAll('.scroll')]"
    wide = browser.evaluate(f"{boxes}.filter(box => box.scrollWidth > box.clientWidth).length")
    assert wide > 0 or width > 1000
    assert browser.evaluate(f"{boxes}.every(box => box.tabIndex === 0 && box.scrollWidth >= box.clientWidth)")


def contrast(first, second):
    """The contrast ratio of two colours `rgb(r, g, b)`, as the accessibility guidelines define it."""

    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_follow_the_scheme_and_can_be_read(browser, site, dark):
    browser.open(site / "index.html", dark=dark)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(paper, "rgb(0, 0, 0)") < 2) == dark
    for selector in ("body", "small", "caption", "nav a", ".absent", ".improved", ".rule", ".status"):
        ink = browser.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color")
        assert contrast(ink, paper) >= 4.5, selector
    label = browser.evaluate("getComputedStyle(document.querySelector('.chart text')).fill")
    assert contrast(label, paper) >= 4.5
    for tone in range(6):
        line = browser.evaluate(f"getComputedStyle(document.querySelector('.chart .line.tone-{tone}')).stroke")
        assert contrast(line, paper) >= 3, tone


def test_statuses_differ_in_more_than_colour(browser, site):
    browser.open(site / "index.html")
    texts = browser.evaluate("[...new Set([...document.querySelectorAll('.status')].map(one => one.textContent))]")
    assert set(texts) == {"confirmed", "not confirmed", "not yet tested"}
    assert browser.evaluate("[...document.querySelectorAll('svg')].every(svg => svg.getAttribute('aria-label'))")
    assert browser.evaluate("[...document.querySelectorAll('table')].every(table => table.caption.textContent)")


def test_hostile_names_run_nothing(browser, tmp_path):
    config = cells("table1", only="softsort-n5-baseline")[0].make(seed=0, steps=10_000, device="cpu")
    name = "<img src=x onerror=alert(1)>"
    write_run(
        tmp_path / name, config, {HOSTILE: 1.0}, changes={"algorithm": HOSTILE, "data": '"><svg onload=alert(1)>'}
    )
    write_report(tmp_path, tmp_path / "site")
    browser.open(tmp_path / "site" / "index.html")
    assert browser.complaints == []
    assert [row[2] for row in columns(browser, "others")] == [HOSTILE]
    assert [row[0] for row in columns(browser, "others")] == [name]


def test_screenshots_are_not_blank(browser, site, tmp_path):
    for name, options in {"light": {}, "dark": {"dark": True}, "phone": {"width": 375, "height": 800}}.items():
        browser.open(site / "index.html", **options)
        browser.screenshot(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_print_has_no_navigation(browser, site):
    browser.open(site / "index.html")
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.send("Emulation.setEmulatedMedia", media="")
