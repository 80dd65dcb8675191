"""The documentation in a real browser: every page at two widths, its links, formulas, requests and length.

The site is built without running the gallery; NEWTON_LOSSES_SITE names a folder with one that was built before.
"""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag

import pytest

from chromium import Browser, needs_chromium

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, needs_chromium]
WIDTHS = {1280: 800, 390: 844}
# Pages that are as long as what they list.
LONG = re.compile(r"^(evidence\.html|reference/|gallery/)")

LOOK = """(() => {
  const shown = document.querySelector('.md-content');
  const words = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  const source = [];
  const tex = /\\\\[a-zA-Z(\\[]|\\$\\$|\\$[^$ ]+\\$/;
  while (words.nextNode()) {
    const word = words.currentNode;
    if (tex.test(word.data) && !word.parentElement.closest('code, pre, script, style'))
      source.push(word.data.trim());
  }
  const images = [...shown.querySelectorAll("img")];
  const formulas = [...document.querySelectorAll('math')];
  const visible = (one) => one.closest('details:not([open])') === null;
  const height = shown.querySelector('article').getBoundingClientRect().height;
  const empty = formulas.filter((one) => visible(one) && !one.getBoundingClientRect().width);
  const folded = document.documentElement.scrollWidth;
  shown.querySelectorAll('details').forEach((one) => { one.open = true; });
  return {
    width: Math.max(folded, document.documentElement.scrollWidth),
    height: height,
    links: [...document.links].map((link) => link.href),
    pictures: images.filter((one) => one.complete && !one.naturalWidth).map((one) => one.src),
    ids: [...document.querySelectorAll('[id], a[name]')].map((one) => one.id || one.name),
    source: source,
    formulas: formulas.length,
    empty: empty.map((one) => one.textContent),
    font: !formulas.length || document.fonts.check('16px "STIX Two Math"'),
    neighbours: [...document.querySelectorAll('.md-footer__link')].length,
    tabs: [...document.querySelectorAll('.md-tabs__link')].map((one) => one.textContent.trim()),
  };
})()"""


class Visit(NamedTuple):
    """What a page looked like at a width, and what went wrong on the way."""

    page: str
    width: int
    seen: dict[str, Any]
    complaints: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    if given := os.environ.get("NEWTON_LOSSES_SITE"):
        return (ROOT / given).resolve()
    folder = tmp_path_factory.mktemp("site")
    quiet = {"NO_MKDOCS_2_WARNING": "1", "NEWTON_LOSSES_GALLERY": "off"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **quiet})
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served. Nothing else is: a request to another host is one that leaves the machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def visits(site: Path, address: str, browser: Browser) -> list[Visit]:
    found = []
    pages = sorted(str(file.relative_to(site)) for file in site.rglob("*.html") if file.name != "404.html")
    assert len(pages) > 20
    for page in pages:
        for width, height in WIDTHS.items():
            browser.open(address + page, width=width, height=height)
            if browser.evaluate("document.querySelector('math') !== null"):
                loaded = "document.fonts.load('16px \"STIX Two Math\"').then(() => true)"
                browser.send("Runtime.evaluate", expression=loaded, awaitPromise=True)
            seen = browser.evaluate(LOOK)
            found.append(Visit(page, width, seen, list(browser.complaints), list(browser.requests)))
    return found


def test_no_page_scrolls_sideways(visits: list[Visit]) -> None:
    assert [(visit.page, visit.seen["width"]) for visit in visits if visit.seen["width"] > visit.width] == []


def test_no_request_leaves_the_machine_and_nothing_complains(visits: list[Visit], address: str) -> None:
    fine = (address, "data:", "blob:")
    assert {url for visit in visits for url in visit.requests if not url.startswith(fine)} == set()
    assert [(visit.page, visit.complaints) for visit in visits if visit.complaints] == []


def test_all_links_and_pictures_resolve(visits: list[Visit], site: Path, address: str) -> None:
    places = {visit.page: set(visit.seen["ids"]) for visit in visits}
    broken = set()
    for visit in visits:
        for link in (*visit.seen["links"], *visit.seen["pictures"]):
            if not link.startswith(address):
                assert re.match(r"https://|mailto:", link), f"{visit.page} links to {link}"
                continue
            file, place = urldefrag(link.removeprefix(address))
            file = unquote(file) or "index.html"
            wanted = unquote(place)
            if not (site / file).is_file() or (wanted and file in places and wanted not in places[file]):
                broken.add((visit.page, link.removeprefix(address)))
        assert visit.seen["pictures"] == [], visit.page
    assert broken == set()


def test_all_formulas_are_drawn(visits: list[Visit]) -> None:
    assert [(visit.page, visit.seen["source"]) for visit in visits if visit.seen["source"]] == []
    assert [(visit.page, visit.seen["empty"]) for visit in visits if visit.seen["empty"]] == []
    assert all(visit.seen["font"] for visit in visits)
    assert sum(visit.seen["formulas"] for visit in visits) > 100


def test_guides_are_at_most_two_screens(visits: list[Visit]) -> None:
    guides = {
        visit.page: visit.seen["height"] for visit in visits if visit.width == 1280 and not LONG.match(visit.page)
    }
    assert {page: height for page, height in guides.items() if height > 1600} == {}


def test_pages_follow_one_another_under_the_same_tabs(visits: list[Visit]) -> None:
    tabs = re.findall(r"^  - (\w+):", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1], re.MULTILINE)
    assert tabs == ["Start", "Guides", "Gallery", "Benchmarks", "Reference"]
    for visit in visits:
        assert visit.seen["tabs"] == tabs
        assert visit.seen["neighbours"] >= 1


def test_search_finds_a_name(address: str, browser: Browser) -> None:
    browser.open(address + "index.html", width=1280, height=800)
    browser.evaluate("document.querySelector('[name=query]').focus()")
    typed = "new Event('input', { bubbles: true })"
    browser.evaluate(
        "(() => { const field = document.querySelector('[name=query]'); field.value = 'SpearmanLoss';"
        f" field.dispatchEvent({typed}); field.dispatchEvent(new KeyboardEvent('keyup', {{ bubbles: true }})); }})()"
    )
    deadline = time.monotonic() + 20
    while not (found := browser.evaluate("document.querySelectorAll('.md-search-result__link').length")):
        assert time.monotonic() < deadline, "the search found nothing"
        time.sleep(0.1)
    assert found >= 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_follow_the_system(address: str, browser: Browser, dark: bool) -> None:
    browser.open(address + "how-it-works.html", dark=dark)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = browser.evaluate("getComputedStyle(document.querySelector('svg.chart text')).fill")
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (paper, ink)]
    assert (bright[0] < bright[1]) is dark
    assert abs(bright[0] - bright[1]) > 380
