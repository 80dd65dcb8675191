"""The demonstration, shortened: it trains, resumes, draws, and its words follow from its figures."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cli.running import command
from newton_losses_bench.data import glyphs
from newton_losses_bench.demo import (
    ARMS,
    DEMO,
    TEN_LINES,
    arm_config,
    demo_jobs,
    read_evaluations,
    summarise,
    verdict,
    write_page,
)
from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Lines, LocalPool, execute, run_sweep
from newton_losses_bench.train import Progress

SHORT = replace(DEMO, steps=4, eval_every=2, validation_sets=5, test_sets=10)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All arms with one seed, in this process: starting others takes seconds each."""
    out = tmp_path_factory.mktemp("demo")
    jobs = demo_jobs(out, SHORT, [0])
    for job in jobs.values():
        execute(job, Progress())
    return out, jobs


@pytest.fixture(scope="module")
def page(trained):
    out, jobs = trained
    return write_page(out, SHORT, jobs, read_evaluations(jobs))


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert "{{" not in text
    assert "{%" not in text
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert "color-scheme: light dark" in text


def test_the_page_shows_the_task_then_the_race_then_every_loss_then_code_and_what_next(page):
    text = page.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "The task", "The race", "What the networks do", "The lines that did it", "What it shows, and what it does not",
        "Where to go next",
    ]  # fmt: skip
    assert text.count("data:image/png;base64,") == 5 * (2 + 6 * len(ARMS))  # the task, and six sets for each loss
    assert text.count("<svg") == 1
    assert all(text.count(arm.title) >= 2 for arm in ARMS)  # in the table and below its digits
    assert "nl.NewtonLoss(loss, &#34;fisher&#34;, damping=100)" in text


def test_the_lines_on_the_page_train_a_network():
    network = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten())
    before = network[0].weight.clone()
    names = {
        "network": network,
        "optimizer": torch.optim.Adam(network.parameters()),
        "batches": [(torch.rand(8, 5, 3), torch.rand(8, 5))],
    }
    assert len([line for line in TEN_LINES.splitlines() if line.strip()]) <= 10
    exec(TEN_LINES, names)
    assert not torch.equal(network[0].weight, before)


def test_finished_runs_are_not_trained_again(trained):
    out, jobs = trained
    store = Store(out / "runs")
    result = run_sweep(jobs.values(), store, Lines(io.StringIO()), LocalPool(1, store.path / ".logs", ["false"]))
    assert (result.finished_before, result.exit_code) == (len(ARMS), 0)


def test_the_command_from_nothing_to_a_page(tmp_path):
    code, text = command("demo", "--out", str(tmp_path / "demo"), "--seed", "1", "--steps", "2")
    assert code == 0, text
    assert ", seed 1: " in text
    assert ", seed 0: " not in text
    assert text.index("The task:") < text.index("The race:") < text.index("[5/5]") < text.index("Open ")
    # One seed has no deviation, and is named.
    assert "±" not in text
    assert "of 1 seed)" in text
    assert re.search(r"Finished in \d:\d\d\. Open", text)
    page = (tmp_path / "demo" / "index.html").read_text()
    assert "±" not in page
    assert "gives them (seed 1)" in page


@pytest.mark.slow
def test_a_failing_run_is_reported_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("newton_losses_bench.sweep.processes._RETRY_SECONDS", 0.0)
    for job in demo_jobs(tmp_path, replace(DEMO, steps=2, eval_every=1), [0]).values():
        Path(job.folder).mkdir(parents=True)
        (Path(job.folder) / "letter.txt").write_text("hello")
    code, text = command("demo", "--out", str(tmp_path), "--seeds", "1", "--steps", "2")
    assert code == 2
    assert "error: 5 runs failed. The first: " in text
    assert "Traceback" not in text


def test_arms_differ_in_their_loss_alone():
    configs = [arm_config(SHORT, arm, 0) for arm in ARMS]
    names = {"numerics", "curvature", "damping", "clip_norm"}
    rest = [{k: v for k, v in config.to_dict().items() if k not in names} for config in configs]
    assert all(other == rest[0] for other in rest)


def test_glyphs_are_the_same_in_every_run():
    first, second = glyphs.__wrapped__(), glyphs()
    assert torch.equal(first.train.images, second.train.images)
    assert not torch.equal(first.train.images[:100], first.test.images[:100])
    assert first.train.labels.unique().tolist() == list(range(10))


def made_up(**means):
    """Evaluations of two seeds around these means."""
    records = lambda mean: [[{"step": 1, "test": {"exact_match": mean + d, "element_wise": 50.0}}] for d in (-1, 1)]  # noqa: E731
    return {arm.name: records(means.get(arm.name.replace("-", "_"), 50.0)) for arm in ARMS}


def test_the_words_follow_from_the_figures():
    good = verdict(summarise(made_up(plain=2.0, newton=52.0, clipped=68.0, stable=63.0, stable_newton=64.0)))
    assert "The usual loss orders 2 % of the sets correctly; as a Newton loss, 52 % (better for 2 of 2 seeds)." in good
    assert "Two remedies without curvature do even better: gradient clipping reaches 68 %" in good
    assert "+1.0 points, no more than the seeds differ" in good
    bad = verdict(summarise(made_up(plain=52.0, newton=2.0, clipped=1.0, stable=30.0, stable_newton=60.0)))
    assert "better for 0 of 2 seeds" in bad
    assert "without curvature for comparison" in bad
    assert "+30.0 points, more than the seeds differ" in bad
