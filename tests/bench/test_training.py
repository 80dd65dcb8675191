"""Every algorithm with every curvature makes finite steps; the loop evaluates, selects and reports."""

import contextlib
import json
import math
from dataclasses import replace

import pytest
import torch

from newton_losses_bench.config import PATHS_ALGORITHMS, SORTING_ALGORITHMS, PathsConfig, SortingConfig
from newton_losses_bench.describe import outcome
from newton_losses_bench.machine import Interrupted, StopRequests
from newton_losses_bench.store import RunError, read_checkpoint
from newton_losses_bench.tasks import load_maps
from newton_losses_bench.tasks.paths import tenths
from newton_losses_bench.train import Progress, make_task, run
from newton_losses_bench.train_step import Trainer

SORTING = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=4, steps=4, eval_every=2, batch_size=5,
    validation_sets=10, test_sets=12, device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def paths_config(data_root):
    return PathsConfig(
        algorithm="fenchel-young", size=4, train_maps=7, test_maps=4, batch_size=3, epochs=2, num_samples=3,
        data_root=data_root, device="cpu",
    )  # fmt: skip


def steps_of(config, count=3):
    """A trainer after some steps, and the losses of these."""
    config = config.resolved()
    trainer = Trainer(make_task(config), config)
    losses = []
    for _ in range(count):
        trainer.train_step()
        losses.append(trainer.last_loss())
    return trainer, losses


@pytest.mark.parametrize("numerics", ["stable", "reference"])
@pytest.mark.parametrize("curvature", ["none", "hessian", "fisher", "sample", "energy"])
@pytest.mark.parametrize("algorithm", SORTING_ALGORITHMS)
def test_sorting_steps_are_finite(algorithm, curvature, numerics):
    config = replace(SORTING, algorithm=algorithm, curvature=curvature, numerics=numerics)
    trainer, losses = steps_of(config)
    assert all(loss is not None and loss > 0 for loss in losses)
    assert trainer.skipped_samples() == 0
    assert all(torch.isfinite(p).all() for p in trainer.task.model.parameters())


@pytest.mark.parametrize("curvature", ["none", "hessian", "fisher", "sample", "energy"])
@pytest.mark.parametrize("algorithm", PATHS_ALGORITHMS)
@pytest.mark.parametrize("variant", [("for", "l1"), ("while", "l2")])
def test_paths_steps_are_finite(paths_config, algorithm, curvature, variant):
    if algorithm == "bellman-ford":
        extra = {"loop": variant[0], "norm": variant[1], "iterations": 4, "num_samples": None}
    elif variant == ("while", "l2") or (algorithm, curvature) == ("smoothed-algorithm", "hessian"):
        pytest.skip("not a variant of this algorithm")
    else:
        extra = {}
    trainer, losses = steps_of(replace(paths_config, algorithm=algorithm, curvature=curvature, **extra))
    assert all(loss is not None and loss >= 0 for loss in losses)
    assert trainer.skipped_samples() == 0
    assert all(torch.isfinite(p).all() for p in trainer.task.model.parameters())


@pytest.mark.parametrize("curvature", ["none", "fisher"])
@pytest.mark.parametrize("algorithm", PATHS_ALGORITHMS)
def test_a_diverged_run_on_maps_ends_and_says_so(paths_config, tmp_path, algorithm, curvature):
    extra = {"iterations": 4, "num_samples": None} if algorithm == "bellman-ford" else {}
    config = replace(paths_config, algorithm=algorithm, curvature=curvature, learning_rate=1e38, **extra)
    result = run(config.resolved(), tmp_path, progress=Progress())
    assert result["not_finite_steps"] > 0
    assert "a smaller --learning-rate" in outcome(result, again=False)
    assert result["reported"]["test"] == {"perfect_match": 0.0, "cost_match": 0.0}


def test_the_arms_of_a_seed_see_the_same_batches_and_start_alike():
    arms = [replace(SORTING, curvature=c).resolved() for c in ("none", "fisher", "hessian")]
    first = [Trainer(make_task(config), config) for config in arms]
    for trainer in first:
        trainer.train_step()
    assert len({trainer.last_loss() for trainer in first}) == 1
    states = [trainer.task.generators["batches"].get_state() for trainer in first]
    assert all(torch.equal(state, states[0]) for state in states)


def test_the_global_generator_is_left_alone(paths_config):
    before = torch.get_rng_state()
    steps_of(SORTING)
    steps_of(paths_config)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_leaves_everything_in_its_folder(tmp_path):
    result = run(SORTING, str(tmp_path / "run"))
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files >= {"config.json", "evaluations.jsonl", "checkpoint.pt", "result.json", "weights.pt"}
    lines = [json.loads(x) for x in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    best = max(line["validation"]["exact_match"] for line in lines)
    assert result["reported"]["validation"]["exact_match"] == best
    assert result["test"] == result["reported"]["test"]
    assert result["final"] == lines[-1]
    weights = torch.load(tmp_path / "run" / "weights.pt", weights_only=True)
    make_task(SORTING.resolved()).model.load_state_dict(weights)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = run(SORTING, str(tmp_path / "run"))
    heard = []

    class Listener(Progress):
        def finished(self, result, *, again=False):
            heard.append(again)

        def started(self, *arguments):
            raise AssertionError("started again")

    assert run(SORTING, str(tmp_path / "run"), progress=Listener()) == first
    assert heard == [True]


def test_an_evaluation_is_announced_before_it_begins(tmp_path):
    heard = []

    class Listener(Progress):
        def evaluating(self, step, fraction=0.0):
            heard.append((step, len((tmp_path / "evaluations.jsonl").read_text().splitlines()) if heard else 0))

    run(SORTING, str(tmp_path), progress=Listener())
    assert heard == [(2, 0), (4, 1)]


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("task", ["sorting", "paths"])
def test_an_evaluation_says_how_far_it_is(tmp_path, monkeypatch, paths_config, task, average):
    monkeypatch.setattr("newton_losses_bench.train.NEWS_SECONDS", 0.0)
    config = SORTING if task == "sorting" else paths_config
    heard = []

    class Listener(Progress):
        def evaluating(self, step, fraction=0.0):
            heard.append(fraction)

    run(replace(config, average=average), str(tmp_path), progress=Listener())
    first = heard[: heard.index(1.0) + 1]
    assert first[0] == 0.0
    assert len(first) > 2
    assert first == sorted(first)


def test_paths_have_a_partial_batch_and_learning_rate_drops(paths_config):
    config = replace(paths_config, epochs=10).resolved()
    task = make_task(config)
    assert task.batch_sizes == (3, 1)
    assert task.total_steps == 30
    sizes = [task.begin_step(step) for step in range(3)]
    assert sizes == [3, 3, 1]
    trainer = Trainer(task, config)
    rates = [trainer.learning_rate(3 * epoch) / config.learning_rate for epoch in range(10)]
    assert rates == pytest.approx([1] * 6 + [0.1] * 2 + [0.01] * 2)
    assert task.eval_every == 3


def test_an_epoch_visits_every_map_once(paths_config):
    task = make_task(paths_config.resolved())
    task.begin_step(0)
    assert sorted(task.tensors["order"].tolist()) == list(range(7))
    first = task.tensors["order"].clone()
    task.begin_step(3)
    assert not torch.equal(task.tensors["order"], first)
    assert task.tensors["place"] == 0


def test_a_longer_set_of_maps_begins_with_the_shorter_one(paths_config, tmp_path):
    config = replace(paths_config, data_root=str(tmp_path)).resolved()
    long = load_maps(config)
    for maps in (5, 9):  # a beginning of what is stored, and more than is stored
        found = load_maps(replace(config, train_maps=maps))
        shared = min(maps, 7)
        assert torch.equal(found.train.maps[:shared], long.train.maps[:shared])
        assert len(found.train) == maps
        assert torch.equal(found.test.mean, found.train.mean)


def test_clipping_bounds_the_step():
    free, _ = steps_of(SORTING, 1)
    config = replace(SORTING, clip_norm=1e-12)
    clipped, _ = steps_of(config, 1)
    start = make_task(SORTING.resolved()).model

    def moved(trainer):
        pairs = zip(trainer.task.model.parameters(), start.parameters(), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    # Adam divides by the gradient's size, so that only its ε = 1e-8 shows a gradient of 1e-12.
    assert moved(clipped) < 0.01 * moved(free)


def test_learning_happens(tmp_path):
    config = replace(SORTING, n=3, steps=150, eval_every=150, batch_size=20, validation_sets=200, test_sets=200)
    result = run(config, str(tmp_path / "run"))
    # A sixth of the sets of three come out right by chance.
    assert result["test"]["exact_match"] > 40


def test_a_stop_request_saves_and_the_run_resumes(tmp_path, monkeypatch):
    whole = run(SORTING, str(tmp_path / "whole"))

    class StopAtThree(Progress):
        def __init__(self):
            self.stop = StopRequests()

        def evaluated(self, record):
            self.stop.requested = 2

    listener = StopAtThree()
    monkeypatch.setattr("newton_losses_bench.train.stop_requests", lambda: contextlib.nullcontext(listener.stop))
    with pytest.raises(Interrupted) as caught:
        run(SORTING, str(tmp_path / "run"), progress=listener)
    assert caught.value.step == 2
    assert caught.value.exit_code == 130
    monkeypatch.undo()
    again = run(SORTING, str(tmp_path / "run"))
    assert again["final"] == whole["final"]


def test_a_reader_who_leaves_ends_the_run_without_a_complaint(tmp_path):
    """As `train … | head` does; the command exits silently then."""

    class Pipe(Progress):
        def evaluated(self, record):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(SORTING, str(tmp_path), progress=Pipe())
    assert not (tmp_path / "error.txt").exists()


def failing(error, at):
    """A task of the user's own that fails in this step (from 0)."""

    def make(config):
        task = make_task(config)
        begin = task.begin_step

        def begin_step(step):
            if step == at:
                raise error
            return begin(step)

        task.begin_step = begin_step
        return task

    return make


def test_an_error_in_a_task_is_a_sentence_and_the_run_resumes(tmp_path):
    whole = run(SORTING, str(tmp_path / "whole"))
    folder = tmp_path / "run"
    error = ValueError("no such colour")
    with pytest.raises(RunError, match=r"ValueError: no such colour\. Its traceback is in .*error\.txt") as heard:
        run(SORTING, str(folder), make=failing(error, 3), checkpoint_seconds=0)
    assert heard.value.__cause__ is error
    assert "in begin_step" in (folder / "error.txt").read_text()
    assert run(SORTING, str(folder))["final"] == whole["final"]
    assert not (folder / "error.txt").exists()


@pytest.mark.parametrize("full", [torch.OutOfMemoryError(), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")])
def test_a_full_device_is_a_sentence_and_the_run_resumes(full, tmp_path):
    whole = run(SORTING, str(tmp_path / "whole"))
    with pytest.raises(RunError, match=r"memory of cpu\. A smaller --batch-size or --n needs less") as heard:
        run(SORTING, str(tmp_path / "run"), make=failing(full, 3), checkpoint_seconds=0)
    assert heard.value.__cause__ is full
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt")["step"] == 3
    assert run(SORTING, str(tmp_path / "run"))["final"] == whole["final"]


@pytest.mark.parametrize("compile", [True, False])
def test_a_fault_of_the_device_names_the_compiler_if_there_was_one(compile, tmp_path):
    def make(config):
        raise RuntimeError("CUDA error: misaligned address\nCompile with `TORCH_USE_CUDA_DSA`")

    with pytest.raises(RunError, match="misaligned") as caught:
        run(replace(SORTING, compile=compile), str(tmp_path / "run"), make=make)
    assert ("without --compile" in str(caught.value)) == compile


def test_a_checkpoint_of_another_version_is_a_clear_error():
    trainer, _ = steps_of(SORTING, 1)
    state = trainer.state()
    del state["tensors"]["last_loss"]
    with pytest.raises(RunError, match="another version"):
        trainer.restore(state)


def test_a_loss_that_is_not_finite_is_stored_as_null():
    trainer, _ = steps_of(SORTING, 1)
    trainer.tensors["last_loss"].fill_(math.nan)
    assert trainer.last_loss() is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_mean_loss_is_that_of_the_steps_with_a_finite_one(bad):
    trainer, (first,) = steps_of(SORTING, 1)
    draw_loss = trainer.task.draw_loss
    trainer.task.draw_loss = lambda size: draw_loss(size) + bad  # with the gradient as it is
    trainer.train_step()
    assert trainer.last_loss() is None
    trainer.task.draw_loss = draw_loss
    trainer.train_step()
    assert trainer.take_mean_loss() == (pytest.approx((first + trainer.last_loss()) / 2, rel=1e-12), 2)
    assert trainer.take_mean_loss() == (None, 0)


@pytest.mark.parametrize(
    ("bad", "counts", "at_the_end"),
    [({1}, [1, 0, 0], 0), ({3}, [0, 1, 0], 0), ({5}, [0, 0, 1], 1), ({1, 2, 3, 4}, [1, 2, 1], 4)],
)
def test_steps_without_a_finite_loss_are_counted(bad, counts, at_the_end, tmp_path):
    def make(config):
        task = make_task(config)
        draw_loss, steps = task.draw_loss, iter(range(6))
        task.draw_loss = lambda size: draw_loss(size) + (math.nan if next(steps) in bad else 0)
        return task

    result = run(replace(SORTING, steps=6), str(tmp_path), make=make)
    records = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [record["not_finite_steps"] for record in records] == counts
    assert [record["loss"] is None for record in records] == [count == 2 for count in counts]
    assert result["not_finite_steps"] == at_the_end


def test_tenths_are_exact():
    weights = torch.tensor([[[0.8, 9.2], [5.3, 1.2]]]).half().float()
    assert tenths(weights, torch.eye(2)[None]).tolist() == [20]


@pytest.mark.parametrize("numerics", ["stable", "reference"])
@pytest.mark.parametrize("curvature", ["none", "fisher", "hessian"])
def test_a_loss_that_is_not_finite_to_the_end_is_in_the_result(curvature, numerics, tmp_path):
    config = replace(SORTING, curvature=curvature, numerics=numerics)
    result = run(replace(config, learning_rate=1e30), str(tmp_path / "a"))
    # The first step is as usual; from the second on no sample has a loss, so that the second evaluation has no mean.
    assert result["not_finite_steps"] == 3
    assert result["steps"] == 4
    assert result["final"]["loss"] is None
    assert run(config, str(tmp_path / "b"))["not_finite_steps"] == 0
