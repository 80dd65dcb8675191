"""Several runs that take turns in one process come out as each does alone, whatever happens to them on the way."""

import contextlib
import json
import signal
from dataclasses import replace

import pytest
import torch
from small_runs import small_runs

from newton_losses.errors import ArgumentError
from newton_losses_bench import loop
from newton_losses_bench.loop import PlannedRun, run, run_together
from newton_losses_bench.progress import Silent
from newton_losses_bench.signals import Interrupted, StopRequests
from newton_losses_bench.store import RunError, is_in_use, read_checkpoint
from newton_losses_bench.tasks import make_task
from newton_losses_bench.whose import seed_of

CONFIGS = small_runs(steps=13, eval_every=5, epochs=4)
SEEDS = range(4)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(loop, "STEPS_A_TURN", 2)


@pytest.fixture(scope="module", params=["sorting", "paths"])
def config(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return replace(CONFIGS[request.param], data_root=str(root))


@pytest.fixture(scope="module")
def alone(config, tmp_path_factory):
    """The folder of every seed after a run of its own."""
    base = tmp_path_factory.mktemp("alone")
    for seed in SEEDS:
        run(replace(config, seed=seed), str(base / str(seed)))
    return base


def plans(config, base, listeners=None):
    listeners = listeners or {}
    return [PlannedRun(replace(config, seed=s), str(base / str(s)), listeners.get(s)) for s in SEEDS]


def check_same(found, wanted):
    """All that a run leaves behind, but for how long it took."""
    for seed in map(str, SEEDS):
        names = ("evaluations.jsonl", "weights.pt")
        assert all((found / seed / name).read_bytes() == (wanted / seed / name).read_bytes() for name in names), seed
        states = [read_checkpoint(base / seed / "checkpoint.pt") for base in (found, wanted)]
        assert states[0]["step"] == states[1]["step"]
        for kind in ("tensors", "generators"):
            assert all(torch.equal(states[0][kind][name], tensor) for name, tensor in states[1][kind].items()), seed
        results = [json.loads((base / seed / "result.json").read_text()) for base in (found, wanted)]
        for result in results:
            for name in ("seconds", "milliseconds_per_step", "sha256", "at_once"):
                del result[name]
        assert results[0] == results[1]


class Recorded:
    """Tasks of which the order of the steps is written down; that of the seed `failing` fails at its step `at`."""

    def __init__(self, failing=None, at=0):
        self.steps = []
        self.failing, self.at = failing, at

    def __call__(self, config):
        task = make_task(config)
        begin = task.begin_step

        def begin_step(step):
            if config.seed == self.failing and step == self.at:
                raise RunError("the dog ate it")
            self.steps.append((config.seed, step))
            return begin(step)

        task.begin_step = begin_step
        return task


@pytest.mark.parametrize("at_once", [2, 4])
def test_runs_that_take_turns_end_as_they_do_alone(config, alone, tmp_path, at_once):
    make = Recorded()
    results = run_together(plans(config, tmp_path), at_once=at_once, make=make)
    check_same(tmp_path, alone)
    assert [result["configuration"]["seed"] for result in results] == list(SEEDS)
    assert {result["at_once"] for result in results} == {at_once}
    # They did take turns, of two steps each.
    order = [seed for seed, _ in make.steps]
    assert order[: 2 * at_once] == [seed for seed in range(at_once) for _ in range(2)]


def test_a_stop_request_saves_all_and_the_runs_go_on(config, alone, tmp_path, monkeypatch):
    stop = StopRequests()
    notes = []

    class Listener(Silent):
        def __init__(self, seed):
            self.seed = seed

        def evaluated(self, record):
            # In the middle of the second run, with two under way and two waiting.
            if self.seed == 1:
                stop.requested = signal.SIGINT

        def note(self, text):
            notes.append((self.seed, text))

    with monkeypatch.context() as patch:
        patch.setattr(loop, "stop_requests", lambda: contextlib.nullcontext(stop))
        listeners = {seed: Listener(seed) for seed in SEEDS}
        with pytest.raises(Interrupted) as caught:
            run_together(plans(config, tmp_path, listeners), at_once=2)
    assert caught.value.exit_code == 130
    steps = {seed: read_checkpoint(tmp_path / str(seed) / "checkpoint.pt")["step"] for seed in (0, 1)}
    assert caught.value.step == min(steps.values()) > 0
    assert sorted(notes) == [(seed, f"saved after step {step}") for seed, step in steps.items()]
    assert not (tmp_path / "2").exists()
    run_together(plans(config, tmp_path), at_once=3)
    check_same(tmp_path, alone)


def test_a_stop_request_after_a_run_begins_no_other(tmp_path, monkeypatch):
    stop = StopRequests()

    class StopAtTheEnd(Silent):
        def finished(self, result, again=False):
            stop.requested = signal.SIGTERM

    monkeypatch.setattr(loop, "stop_requests", lambda: contextlib.nullcontext(stop))
    with pytest.raises(Interrupted) as caught:
        run_together(plans(CONFIGS["sorting"], tmp_path, {0: StopAtTheEnd()}), at_once=1)
    assert (caught.value.step, caught.value.exit_code) == (0, 143)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_runs_of_different_progress_go_on_together(config, alone, tmp_path, monkeypatch):
    """One is finished, two were interrupted at different steps, one is new."""
    first, second, third, _ = plans(config, tmp_path)
    run(first.config, first.out)
    for plan, at in ((second, 3), (third, 7)):
        with pytest.raises(RunError):
            run(plan.config, plan.out, make=Recorded(plan.config.seed, at), checkpoint_seconds=0)
    told = []

    class Listener(Silent):
        def __init__(self, seed):
            self.seed = seed

        def started(self, config, step, total, evaluations):
            told.append((self.seed, step))

        def finished(self, result, again=False):
            told.append((self.seed, "again" if again else "finished"))

    listeners = {seed: Listener(seed) for seed in SEEDS}
    make = Recorded()
    run_together(plans(config, tmp_path, listeners), at_once=4, make=make)
    check_same(tmp_path, alone)
    assert told[:4] == [(0, "again"), (1, 3), (2, 7), (3, 0)]
    assert (0, 0) not in make.steps


def test_when_one_fails_the_others_are_saved(config, alone, tmp_path):
    # Both tasks have twelve steps at least, and the second run is at its sixth when the fourth waits to begin.
    with pytest.raises(RunError, match="the dog ate it"):
        run_together(plans(config, tmp_path), at_once=3, make=Recorded(failing=1, at=6))
    for seed in (0, 2):
        assert read_checkpoint(tmp_path / str(seed) / "checkpoint.pt")["step"] >= 6
    assert not (tmp_path / "3").exists()
    assert not any(is_in_use(tmp_path / str(seed)) for seed in (0, 1, 2))
    run_together(plans(config, tmp_path), at_once=4)
    check_same(tmp_path, alone)


def test_a_folder_that_is_refused_stops_all_before_the_first_step(tmp_path):
    config = CONFIGS["sorting"]
    run(replace(config, seed=1, steps=2), str(tmp_path / "1"))
    make = Recorded()
    with pytest.raises(RunError, match="another configuration"):
        run_together(plans(config, tmp_path), at_once=4, make=make)
    assert make.steps == []
    # Nothing stands in the way of the same folders with other settings.
    assert not (tmp_path / "0" / "checkpoint.pt").exists()
    run(replace(config, steps=2), str(tmp_path / "0"))


def test_a_finished_run_is_kept_when_another_fails(tmp_path):
    config = CONFIGS["sorting"]
    short, long = replace(config, steps=3), replace(config, seed=1)
    runs = [PlannedRun(short, str(tmp_path / "0")), PlannedRun(long, str(tmp_path / "1"))]
    with pytest.raises(RunError, match="the dog"):
        run_together(runs, at_once=2, make=Recorded(failing=1, at=10))
    assert (tmp_path / "0" / "result.json").exists()


@pytest.mark.parametrize("full", [torch.OutOfMemoryError(), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")])
def test_a_device_too_small_for_all_is_told(full, tmp_path):
    def make(config):
        if config.seed == 3:
            raise full
        return make_task(config)

    with pytest.raises(RunError, match=r"does not hold 4 runs at the same time\..* with --at-once 2:"):
        run_together(plans(CONFIGS["sorting"], tmp_path), at_once=4, make=make)
    with pytest.raises(RunError, match=r"does not hold this run\. A smaller --batch-size or --n needs less") as caught:
        run_together(plans(CONFIGS["sorting"], tmp_path)[3:], at_once=4, make=make)
    assert caught.value.__cause__ is full
    assert seed_of(caught.value) == 3


@pytest.mark.parametrize("compile", [True, False])
def test_a_fault_of_the_device_names_the_compiler_where_there_was_one(compile, tmp_path):
    def make(config):
        raise RuntimeError("CUDA error: misaligned address\nCompile with `TORCH_USE_CUDA_DSA`")

    with pytest.raises(RuntimeError, match="misaligned") as caught:
        run(replace(CONFIGS["sorting"], compile=compile), str(tmp_path / "run"), make=make)
    notes = getattr(caught.value, "__notes__", [])
    assert [("without --compile" in note) for note in notes] == [True] * compile


def test_a_run_alone_that_finds_no_room_keeps_its_checkpoint(config, alone, tmp_path):
    one = replace(config, seed=2)
    with pytest.raises(RunError, match="does not hold this run"):
        run(one, str(tmp_path / "2"), make=Full({2: 8}), checkpoint_seconds=0)
    assert read_checkpoint(tmp_path / "2" / "checkpoint.pt")["step"] == 8
    run(one, str(tmp_path / "2"))
    assert (tmp_path / "2" / "weights.pt").read_bytes() == (alone / "2" / "weights.pt").read_bytes()


class Full(Recorded):
    """A device that has no room at these steps of these seeds, once each, or `before` they are made."""

    def __init__(self, steps, before=()):
        super().__init__()
        self.full, self.before = dict(steps), set(before)

    def __call__(self, config):
        if config.seed in self.before:
            self.before.remove(config.seed)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        task = super().__call__(config)
        begin = task.begin_step

        def begin_step(step):
            if self.full.get(config.seed) == step:
                del self.full[config.seed]
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return begin(step)

        task.begin_step = begin_step
        return task


class Notes(Silent):
    def __init__(self):
        self.notes, self.ends = [], []

    def note(self, text):
        self.notes.append(text)

    def finished(self, result, *, again=False):
        self.ends.append((result["configuration"]["seed"], again))


def test_where_nobody_asked_for_several_fewer_go_on(config, alone, tmp_path):
    """Twice: while the fourth gets ready, and again in the middle of the second."""
    told = Notes()
    make = Full({1: 6}, before=[3])
    results = run_together(
        plans(config, tmp_path, dict.fromkeys(SEEDS, told)), at_once=4, fewer_if_full=True, make=make
    )
    check_same(tmp_path, alone)
    assert [result["configuration"]["seed"] for result in results] == list(SEEDS)
    assert {result["at_once"] for result in results} == {1}
    assert [note for note in told.notes if "memory" in note] == [
        "The memory of cpu does not hold 4 runs at once: going on with 2 at a time.",
        "The memory of cpu does not hold 2 runs at once: going on one after another.",
    ]
    # The first one saved when the second found no room: none of its steps is done twice.
    assert len([step for seed, step in make.steps if seed == 0]) == len({s for seed, s in make.steps if seed == 0})
    assert sorted(told.ends) == [(seed, False) for seed in SEEDS]


def test_going_on_with_fewer_keeps_results_and_overwrites_nothing_twice(tmp_path):
    config = CONFIGS["sorting"]
    short = [replace(config, seed=0, steps=3), *(replace(config, seed=seed) for seed in (1, 2))]
    for one in short:  # other runs that are to be deleted
        run(replace(one, steps=2), str(tmp_path / str(one.seed)))
    told, make = Notes(), Full({1: 9})
    runs = [PlannedRun(one, str(tmp_path / str(one.seed)), told) for one in short]
    results = run_together(runs, at_once=2, fewer_if_full=True, make=make, overwrite=True)
    assert [(result["configuration"]["seed"], result["at_once"]) for result in results] == [(0, 2), (1, 1), (2, 1)]
    assert sorted(told.ends) == [(0, False), (1, False), (2, False)]
    # From the checkpoint of its evaluation at step 5, and the third from where it had to save.
    assert [step for seed, step in make.steps if seed == 1] == [*range(9), *range(5, 13)]
    assert [step for seed, step in make.steps if seed == 2] == list(range(13))


def test_when_a_person_asks_to_stop_no_fewer_go_on(tmp_path, monkeypatch):
    stop = StopRequests()
    monkeypatch.setattr(loop, "stop_requests", lambda: contextlib.nullcontext(stop))

    class FullAfterControlC(Full):
        def __call__(self, config):
            stop.receive(signal.SIGINT, None)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(RunError, match="Give the same command again with --at-once 2"):
        run_together(plans(CONFIGS["sorting"], tmp_path), at_once=4, fewer_if_full=True, make=FullAfterControlC({}))


def test_a_device_too_small_for_one_says_so_in_the_end(tmp_path):
    def make(config):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(RunError, match="does not hold this run"):
        run_together(plans(CONFIGS["sorting"], tmp_path), at_once=4, fewer_if_full=True, make=make)


def test_what_makes_no_sense_is_refused(tmp_path):
    config = CONFIGS["sorting"]
    with pytest.raises(ArgumentError, match="--at-once 0: it has to be at least 1"):
        run_together(plans(config, tmp_path), at_once=0)
    mixed = [PlannedRun(replace(config, precision=p), str(tmp_path / p)) for p in ("float32", "tf32")]
    with pytest.raises(ArgumentError, match="the same --precision, and these have float32, tf32"):
        run_together(mixed, at_once=2)
    assert run_together([], at_once=1) == []
