"""`--at-once` of `newton-losses train`: how many of the seeds train at the same time, and what a person sees."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from newton_losses_bench import at_once
from newton_losses_bench.at_once import choose_at_once
from newton_losses_bench.cli import _train
from newton_losses_bench.cli._app import app
from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.tasks import kept

TINY = [
    *("train", "sorting", "--data", "digits", "--digits", "1", "-n", "3", "--steps", "4", "--eval-every", "2"),
    *("--batch-size", "4", "--validation-sets", "10", "--test-sets", "10", "--device", "cpu"),
]
CONFIG = SortingConfig(algorithm="softsort", device="cpu").resolved()
ON_CUDA = replace(CONFIG, device="cuda", graph=True)
PATHS_ON_CUDA = replace(PathsConfig(algorithm="fenchel-young", device="cpu").resolved(), device="cuda", graph=True)


def command(*words):
    """The exit code and what was printed."""
    done = CliRunner().invoke(app, list(words), prog_name="newton-losses", terminal_width=200)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--seeds", "0-2", "--at-once", "0"], "from 1 (one after another) to 32"),
        (["--seeds", "0-2", "--at-once", "33"], "from 1 (one after another) to 32"),
        (["--at-once", "3"], "this is one run. Give several seeds, as in --seeds 0-2, or leave it out"),
        (["--seeds", "0-2", "--at-once", "many"], "Invalid value for '--at-once'"),
    ],
)
def test_mistakes_are_answered(words, answer, tmp_path):
    code, text = command(*TINY, "--out", str(tmp_path / "runs"), *words)
    assert code == 2
    assert answer in " ".join(text.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("asked", "seeds", "number"), [(2, 3, 2), (8, 3, 3), (1, 3, 1)])
def test_on_cuda_as_many_as_asked_for(asked, seeds, number):
    assert choose_at_once(asked, ON_CUDA, seeds) == (number, None)


@pytest.mark.parametrize(
    ("config", "seeds", "number"),
    [(ON_CUDA, 10, 4), (ON_CUDA, 3, 3), (ON_CUDA, 1, 1), (PATHS_ON_CUDA, 10, 2), (PATHS_ON_CUDA, 1, 1)],
)
def test_on_cuda_as_many_as_were_measured_to_be_fastest(config, seeds, number):
    assert choose_at_once(None, config, seeds) == (number, None)
    assert choose_at_once(None, replace(config, device="cuda:1"), seeds) == (number, None)


@pytest.mark.parametrize(
    ("config", "reason"), [(CONFIG, "keeps a CPU busy"), (replace(ON_CUDA, graph=False), "there is one host")]
)
def test_elsewhere_one_after_another_and_why(config, reason):
    assert choose_at_once(1, config, 3) == choose_at_once(None, config, 3) == (1, None)
    number, told = choose_at_once(3, config, 3)
    assert number == 1
    assert reason in told


def test_ranks_of_torchrun_do_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(at_once, "started_by_torchrun", lambda: True)
    assert choose_at_once(1, ON_CUDA, 3) == choose_at_once(None, ON_CUDA, 3) == (1, None)
    assert "wait for each other" in choose_at_once(3, ON_CUDA, 3)[1]


@pytest.mark.parametrize(("asked", "fewer"), [([], True), (["--at-once", "2"], False)])
def test_what_nobody_asked_for_may_become_fewer(asked, fewer, tmp_path, monkeypatch):
    given, run_together = [], _train.run_together

    def listening(plans, **options):
        given.append(options["fewer_if_full"])
        return run_together(plans, **options)

    monkeypatch.setattr(_train, "run_together", listening)
    code, text = command(*TINY, "--seeds", "0,1", "--out", str(tmp_path / "runs"), *asked)
    assert (code, given) == (0, [fewer])
    assert ("one after another" in text) == bool(asked)


def test_on_a_cpu_a_line_says_why_not(tmp_path):
    code, text = command(*TINY, "--seeds", "0,1", "--at-once", "2", "--out", str(tmp_path / "runs"))
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "The seeds train one after another: a step of one run keeps a CPU busy already."
    assert [line for line in lines if "seed" in line][1:3] == [
        f"sorting n=3, softsort (stable), baseline, batch size 4, data digits, digits 1, seed {seed}: 4 steps on cpu"
        for seed in (0, 1)
    ]


@pytest.fixture
def at_once_anywhere(monkeypatch):
    monkeypatch.setattr(_train, "choose_at_once", lambda asked, config, seeds: (asked, None))


def test_lines_of_runs_at_once_begin_with_the_seed(tmp_path, at_once_anywhere):
    code, text = command(*TINY, "--seeds", "3,5", "--at-once", "2", "--out", str(tmp_path / "runs"))
    assert code == 0
    lines = text.splitlines()
    assert len(lines) == 12
    assert {line.split(":")[0] for line in lines[:2]} == {"seed 3", "seed 5"}
    for seed in (3, 5):
        mine = [line.removeprefix(f"seed {seed}: ") for line in lines if line.startswith(f"seed {seed}: ")]
        starts = ["sorting n=3", "step 2/4", "step 4/4", "finished"]
        assert all(line.startswith(start) for line, start in zip(mine, starts, strict=True))
    assert all("2 runs at once" in line for line in lines if "finished" in line)
    assert lines[8:10] == [f"in {tmp_path}/runs/seed-{seed}" for seed in (3, 5)]
    assert lines[10].startswith("test exact match over 2 seeds")


def test_events_of_runs_at_once_carry_the_seed(tmp_path, at_once_anywhere):
    words = [*TINY, "--seeds", "3,5", "--at-once", "2", "--json", "--out", str(tmp_path / "runs")]
    code, text = command(*words)
    assert code == 0
    *events, summary = [json.loads(line) for line in text.splitlines()]
    assert summary["event"] == "summary"
    for seed in (3, 5):
        mine = [event["event"] for event in events if event["seed"] == seed]
        assert mine == ["started", "evaluated", "evaluated", "finished"]


def test_the_seeds_of_a_command_share_their_data(tmp_path, monkeypatch):
    read, loads = kept.load_data, []
    monkeypatch.setattr(kept, "load_data", lambda config: loads.append(config.seed) or read(config))
    assert command(*TINY, "--seeds", "3-5", "--out", str(tmp_path / "runs"))[0] == 0
    assert loads == [3]
