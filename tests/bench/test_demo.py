"""The demonstration, shortened: it trains, resumes, draws, and its words follow from its figures."""

import re

import pytest
import torch

from newton_losses_bench.demo import ARMS, DemoConfig, summarise, train_arms, write_page
from newton_losses_bench.demo._runs import evaluations_of, folder_of
from newton_losses_bench.demo._setting import glyphs, make_demo_task
from newton_losses_bench.demo._summary import verdict
from newton_losses_bench.loop import run

SHORT = DemoConfig(steps=4, eval_every=2, validation_sets=5, test_sets=10)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All arms with one seed, in this process: starting others costs seconds each."""
    out = tmp_path_factory.mktemp("demo")
    for arm in ARMS:
        run(SHORT.with_arm(arm, 0), str(folder_of(out, arm, 0)), make=make_demo_task)
    return out


def test_the_page_needs_nothing_else(trained):
    page = write_page(trained, SHORT, evaluations_of(trained, 1), 12.0).read_text()
    assert "{" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)
    assert all(arm.title in page for arm in ARMS)
    assert page.count("data:image/png;base64,") == 2
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_finished_runs_are_not_trained_again(trained):
    seen = []
    assert train_arms(trained, SHORT, 1, seen.append)
    assert seen[-1] == evaluations_of(trained, 1)


def test_arms_differ_in_their_loss_alone():
    configs = [SHORT.with_arm(arm, 0) for arm in ARMS]
    names = {"numerics", "curvature", "damping", "clip_norm"}
    rest = [{k: v for k, v in config.to_dict().items() if k not in names} for config in configs]
    assert all(other == rest[0] for other in rest)


def test_glyphs_are_the_same_in_every_run():
    first, second = glyphs(), glyphs()
    assert torch.equal(first.train.images, second.train.images)
    assert not torch.equal(first.train.images[:100], first.test.images[:100])
    assert first.train.labels.unique().tolist() == list(range(10))


def made_up(**means):
    """Evaluations of two seeds around these means."""
    records = lambda mean: [[{"step": 1, "test": {"exact_match": mean + d, "element_wise": 50.0}}] for d in (-1, 1)]  # noqa: E731
    return {arm.name: records(means.get(arm.name.replace("-", "_"), 50.0)) for arm in ARMS}


def test_the_words_follow_from_the_figures():
    good = verdict(summarise(made_up(plain=2.0, newton=52.0, clipped=68.0, stable=63.0, stable_newton=64.0)))
    assert "ends with 2 %" in good
    assert "it ends with 52 %, and is better with 2 of 2 seeds" in good
    assert "without curvature end higher still: gradient clipping ends with 68 %" in good
    assert "+1.0 points, no more than the seeds differ" in good
    bad = verdict(summarise(made_up(plain=52.0, newton=2.0, clipped=1.0, stable=30.0, stable_newton=60.0)))
    assert "better with 0 of 2 seeds" in bad
    assert "without curvature for comparison" in bad
    assert "+30.0 points, more than the seeds differ" in bad
