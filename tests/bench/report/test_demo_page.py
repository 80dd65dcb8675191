"""The demonstration's page in a real browser: hostile names, no complaint, no sideways scrolling, light and dark."""

from dataclasses import replace

import pytest
import torch

from chromium import Browser, needs_chromium
from newton_losses_bench.demo import ARMS, DEMO, demo_jobs, page, write_page

HOSTILE = "<script>alert(1)</script>"
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory):
    """With hostile titles, and random scores in the place of trained networks."""
    out = tmp_path_factory.mktemp("demo")
    arms = tuple(replace(arm, title=f"{HOSTILE}{arm.title}") for arm in ARMS)
    records = [{"step": k, "test": {"exact_match": 10.0 * k, "element_wise": 20.0 * k}} for k in (1, 2)]
    evaluations = {arm.name: [records, records] for arm in arms}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "ARMS", arms)
        patch.setattr(page, "_orders", lambda job, images: torch.rand(images.shape[:2]).argsort(1))
        return write_page(out, DEMO, demo_jobs(out, DEMO, [0]), evaluations)


def test_it_escapes_names_and_opens(browser, demo_page):
    text = demo_page.read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2 * len(ARMS)
    browser.open(demo_page)
    assert browser.complaints == []
    titles = browser.evaluate("[...document.querySelectorAll('td:first-child')].map(cell => cell.textContent)")
    assert [title.removeprefix("● ") for title in titles] == [f"{HOSTILE}{arm.title}" for arm in ARMS]
    assert browser.evaluate("[...document.images].every(image => image.naturalWidth === 20 && image.alt)")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_it_never_scrolls_sideways(browser, demo_page, width):
    browser.open(demo_page, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_it_has_a_dark_mode(browser, demo_page):
    background = "getComputedStyle(document.body).backgroundColor"
    browser.open(demo_page)
    light = browser.evaluate(background)
    browser.open(demo_page, dark=True)
    assert browser.evaluate(background) != light
