"""On CUDA, seeds that train together, in streams of their own, end as each does alone."""

import gc
import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from newton_losses_bench.cli.app import app
from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.data import LabeledImages, PathMaps, Splits
from newton_losses_bench.loop import PlannedRun, run, run_together
from newton_losses_bench.store import read_checkpoint
from newton_losses_bench.tasks import PathsTask, SortingTask

pytestmark = pytest.mark.gpu

# The shapes of the experiment, with the kernels of bf16; enough steps for several turns of 100 and three evaluations.
SORTING = SortingConfig(
    algorithm="softsort", n=5, steps=330, eval_every=110, validation_sets=200, test_sets=200, precision="bf16",
    device="cuda",
)  # fmt: skip
PATHS = PathsConfig(algorithm="fenchel-young", epochs=8, eval_every=4, num_samples=3, precision="bf16", device="cuda")


@pytest.fixture(autouse=True)
def deterministic_convolutions(monkeypatch):
    """cuDNN's fastest sums of a gradient may add in any order; then not even one run is equal to itself."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def random_task(config):
    """On random pictures and maps: what matters is on them the same as on real ones."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(config, SortingConfig):
        images = torch.randint(0, 256, (2000, 28, 28), generator=generator, dtype=torch.uint8)
        data = LabeledImages(images, torch.randint(0, 10, (2000,), generator=generator))
        return SortingTask(config, Splits(data, data, data))
    # With a partial batch at the end of every epoch, and so two graphs a run.
    maps = torch.randint(0, 256, (450, 96, 96, 3), generator=generator, dtype=torch.uint8)
    costs = torch.rand(450, 12, 12, generator=generator).half()
    data = PathMaps(maps, costs, torch.eye(12, dtype=torch.uint8).expand(450, 12, 12).contiguous()).with_statistics()
    return PathsTask(config, Splits(data, data, data))


def check(config, base, exact):
    """Three seeds alone and together: all tensors, generators and evaluations are the same to the last bit.

    Where some library's kernel adds in any order, so that a run alone is not even equal to itself, `exact` is
    False and the losses agree but for rounding, grown by some steps of Adam.
    """
    configs = [replace(config, seed=seed) for seed in range(3)]
    for one in configs:
        run(one, str(base / f"alone-{one.seed}"), make=random_task)
    run(configs[0], str(base / "again-0"), make=random_task)
    noise = differences(base / "alone-0", base / "again-0")
    assert noise == [] or not exact, noise
    plans = [PlannedRun(one, str(base / f"together-{one.seed}")) for one in configs]
    results = run_together(plans, at_once=3, make=random_task)
    assert [result["at_once"] for result in results] == [3, 3, 3]
    for seed in range(3):
        alone, together = base / f"alone-{seed}", base / f"together-{seed}"
        if noise == []:
            assert differences(alone, together) == []
        assert first_loss(together) == pytest.approx(first_loss(alone), rel=1e-2)


def first_loss(folder):
    """The mean loss up to the first evaluation."""
    return json.loads((folder / "evaluations.jsonl").read_text().splitlines()[0])["loss"]


def differences(first, second):
    """What differs between two runs, and by how much."""
    states = [read_checkpoint(folder / "checkpoint.pt") for folder in (first, second)]
    pairs = [
        (name, tensor, states[1][kind][name])
        for kind in ("tensors", "generators")
        for name, tensor in states[0][kind].items()
    ]
    found = [
        f"{name}: {(one.double() - other.double()).abs().max():.3g} of {one.double().abs().max():.3g}"
        for name, one, other in pairs
        if not torch.equal(one, other)
    ]
    lines = [(folder / "evaluations.jsonl").read_text() for folder in (first, second)]
    return found + ([] if lines[0] == lines[1] else lines)


@pytest.mark.parametrize("curvature", ["none", "fisher", "hessian"])
@pytest.mark.parametrize("algorithm", ["softsort", "logistic"])
def test_sorting_runs_together_are_those_alone(algorithm, curvature, tmp_path):
    check(replace(SORTING, algorithm=algorithm, curvature=curvature), tmp_path, exact=True)


def test_sorting_runs_with_the_library_s_kernels(tmp_path):
    check(replace(SORTING, kernels=False, curvature="hessian"), tmp_path, exact=True)


@pytest.mark.parametrize(
    ("algorithm", "curvature"), [("fenchel-young", "hessian"), ("smoothed-loss", "fisher"), ("bellman-ford", "none")]
)
def test_path_runs_together_are_those_alone(algorithm, curvature, tmp_path):
    extra = {"num_samples": None} if algorithm == "bellman-ford" else {}
    check(replace(PATHS, algorithm=algorithm, curvature=curvature, **extra), tmp_path, exact=False)


# The compiler looks at the `.grad` of what it is given, which here is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_runs_together_are_those_alone(tmp_path):
    check(replace(SORTING, curvature="fisher", compile=True), tmp_path, exact=False)


def test_more_seeds_than_train_at_once(tmp_path):
    """The next one begins, and is captured, while others are under way."""
    configs = [replace(SORTING, seed=seed, steps=60 + 20 * seed, eval_every=60) for seed in range(5)]
    for one in configs:
        run(one, str(tmp_path / f"alone-{one.seed}"), make=random_task)
    run_together(
        [PlannedRun(one, str(tmp_path / f"together-{one.seed}")) for one in configs], at_once=2, make=random_task
    )
    for one in configs:
        assert differences(tmp_path / f"alone-{one.seed}", tmp_path / f"together-{one.seed}") == []


def test_an_error_of_one_saves_the_others(tmp_path):
    class Broken(Exception):
        pass

    def make(config):
        task = random_task(config)
        begin = task.begin_step

        def begin_step(step):
            if (config.seed, step) == (1, 120):
                raise Broken
            return begin(step)

        task.begin_step = begin_step
        return task

    configs = [replace(SORTING, seed=seed) for seed in range(3)]
    plans = [PlannedRun(one, str(tmp_path / f"together-{one.seed}")) for one in configs]
    with pytest.raises(Broken):
        run_together(plans, at_once=3, make=make)
    assert read_checkpoint(tmp_path / "together-2" / "checkpoint.pt")["step"] > 0
    run_together(plans, at_once=3, make=random_task)
    for one in configs:
        run(one, str(tmp_path / f"alone-{one.seed}"), make=random_task)
        assert differences(tmp_path / f"alone-{one.seed}", tmp_path / f"together-{one.seed}") == []


def test_by_itself_several_seeds_of_a_command_train_at_once(tmp_path):
    words = ["train", "sorting", "--data", "digits", "--digits", "1", "-n", "3", "--steps", "20", "--eval-every", "10"]
    words += ["--validation-sets", "10", "--test-sets", "10", "--device", "cuda", "--json", "--out", str(tmp_path)]
    for more, number in (([], 3), (["--at-once", "1", "--overwrite"], 1)):
        done = CliRunner().invoke(app, [*words, "--seeds", "0-2", *more])
        assert done.exit_code == 0, done.output
        events = [json.loads(line) for line in done.output.splitlines()]
        assert not any(event["event"] == "note" for event in events)
        assert [event["at_once"] for event in events if event["event"] == "finished"] == [number] * 3


def test_a_full_device_goes_on_with_fewer(tmp_path):
    """Four runs with 2 GiB more each do not fit into 6 GiB, and two do; all end as they do alone."""
    filler = 2 << 30

    def make(config):
        task = random_task(config)
        task.filler = torch.empty(filler, dtype=torch.uint8, device="cuda")
        return task

    configs = [replace(SORTING, seed=seed) for seed in range(4)]
    for one in configs:
        run(one, str(tmp_path / f"alone-{one.seed}"), make=random_task)
    gc.collect()
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    limit = torch.cuda.memory_reserved() + 3 * filler
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        plans = [PlannedRun(one, str(tmp_path / f"together-{one.seed}")) for one in configs]
        results = run_together(plans, at_once=4, fewer_if_full=True, make=make)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert {result["at_once"] for result in results} == {2}
    for one in configs:
        assert differences(tmp_path / f"alone-{one.seed}", tmp_path / f"together-{one.seed}") == []
