"""Configurations: the paper's values fill the holes, and every mistake is answered with what would do."""

import re

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from newton_losses import ArgumentError
from newton_losses.curvature import NormalizedDamping, RunningDamping
from newton_losses_bench.config import SORTING_ALGORITHMS, ConvexConfig, PathsConfig, SortingConfig, identity
from newton_losses_bench.machine import resolve_device
from newton_losses_bench.report.collect import column_title
from newton_losses_bench.settings import nearest_column, option
from newton_losses_bench.tasks import SortingTask, training_loss
from newton_losses_bench.tasks.paths import path_loss


def sorting(**settings):
    return SortingConfig(**{"algorithm": "softsort", "device": "cpu", **settings}).resolved()


def paths(**settings):
    return PathsConfig(**{"algorithm": "fenchel-young", "device": "cpu", **settings}).resolved()


def convex(**settings):
    return ConvexConfig(**{"algorithm": "relu-exact", **settings}).resolved()


# The table of the paper's appendix, copied a second time and in its own order, against slips in the first.
PAPER = {
    5: {"hessian": (0.01, 10, 0.1, 0.1), "fisher": (0.1, 10, 0.1, 0.1)},
    10: {"hessian": (0.01, 1, 0.1, 0.1), "fisher": (100, 100, 0.1, 0.1)},
}


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("curvature", ["hessian", "fisher"])
def test_the_damping_of_sorting_is_the_papers(n, curvature):
    found = [sorting(algorithm=a, n=n, curvature=curvature).damping for a in SORTING_ALGORITHMS]
    assert found == list(PAPER[n][curvature])


def test_temperature_and_steepness_are_the_papers():
    assert [sorting(algorithm=a).temperature for a in ("neuralsort", "softsort")] == [1.0, 0.1]
    assert [sorting(algorithm="logistic", n=n).steepness for n in (5, 10)] == [10.0, 10.0]
    assert [sorting(algorithm="cauchy", n=n).steepness for n in (5, 10)] == [10.0, 100.0]
    # A length the paper does not have takes the values of the nearer one.
    assert [sorting(algorithm="cauchy", n=n).steepness for n in (3, 7, 8, 20)] == [10.0, 10.0, 100.0, 100.0]


def test_the_settings_of_paths_are_the_papers():
    assert [paths(algorithm="bellman-ford", norm=m, curvature="fisher").damping for m in ("l1", "l2")] == [1000, 3000]
    assert paths(algorithm="smoothed-loss", curvature="hessian").damping == 1000
    assert paths(algorithm="smoothed-loss", curvature="fisher").damping == 0.1
    assert paths(algorithm="smoothed-algorithm", curvature="fisher").damping == 1000
    assert [paths(curvature=c).damping for c in ("hessian", "fisher")] == [1000, 1000]
    rates = [paths(algorithm=a).learning_rate for a in ("smoothed-loss", "smoothed-algorithm", "fenchel-young")]
    assert rates == [0.001, 0.001, 0.01]
    relaxed = paths(algorithm="bellman-ford")
    assert (relaxed.beta, relaxed.iterations, relaxed.loop, relaxed.norm) == (10.0, 18, "for", "l1")
    assert (paths().scale, paths().num_samples, paths().batch_size, paths().epochs) == (0.1, 10, 70, 50)
    assert paths().drops == (30, 40)
    assert paths(epochs=5).drops == (3, 4)
    assert paths(drops=[9, 5]).drops == (5, 9)


@pytest.mark.parametrize(("given", "baseline"), [({}, "value"), ({"leave_one_out": True}, "leave_one_out")])
def test_noise_keeps_the_papers_baseline_unless_asked(given, baseline):
    for algorithm in ("smoothed-loss", "smoothed-algorithm", "fenchel-young"):
        config = PathsConfig(algorithm=algorithm, device="cpu", **given).resolved()
        assert f"variance_reduction='{baseline}'" in repr(path_loss(config, torch.Generator()))


@pytest.mark.parametrize("exchangeable", [False, True])
def test_the_curvature_of_a_set_is_the_papers_unless_asked(exchangeable):
    config = sorting(curvature="fisher", data="glyphs", exchangeable=exchangeable)
    assert SortingTask(config).loss_module.loss.exchangeable is exchangeable


def test_what_was_given_stays():
    config = sorting(curvature="fisher", damping=3.0, temperature=2.0, learning_rate=0.5)
    assert (config.damping, config.temperature, config.learning_rate) == (3.0, 2.0, 0.5)
    assert sorting(curvature="fisher", relative_damping=2.0).damping is None
    assert config.resolved() == config


def test_a_damping_is_a_number_or_a_rule():
    assert sorting(curvature="fisher", damping="0.5").damping == 0.5
    by_batch = sorting(curvature="hessian", damping="normalized")
    assert (by_batch.damping, by_batch.spectrum) == ("normalized", "absolute")
    assert by_batch.resolved() == by_batch
    assert sorting(curvature="hessian", damping="normalized:3", spectrum="raw").spectrum == "raw"
    assert sorting(curvature="hessian").spectrum == sorting(curvature="fisher", damping="running").spectrum == "raw"
    assert training_loss(mse_loss, by_batch).options["damping"] == NormalizedDamping(1.0)
    tripled = training_loss(mse_loss, sorting(curvature="fisher", damping="running:3")).options["damping"]
    assert tripled == RunningDamping(3.0)


def test_auto_is_what_it_is_in_the_library():
    config = sorting(curvature="fisher", damping="auto:3")
    assert config.damping == config.to_dict()["damping"] == "running:3"
    assert training_loss(mse_loss, sorting(curvature="fisher", damping="auto")).options["damping"] == RunningDamping()


def test_runs_of_the_first_version_called_auto_what_is_normalized():
    config = sorting(curvature="fisher", damping="normalized:3")
    stored = {**config.to_dict(), "damping": "auto:3"}
    assert type(config).from_dict(stored) == config
    assert identity(stored) == identity(config.to_dict()) != identity({**stored, "damping": "running:3"})


def test_a_rule_has_one_spelling():
    first, third = ("running", "running:1", "running:1.0", "running:"), ("running:3", "running:3.0", "running:30e-1")
    spellings = {"running": first, "running:3": third}
    for canonical, others in spellings.items():
        found = [sorting(curvature="fisher", damping=damping) for damping in others]
        assert {config.damping for config in found} == {canonical}
        assert len({identity(config.to_dict()) for config in found}) == 1
        # Nor is a record that another spelling was written into another run.
        stored = [{**found[0].to_dict(), "damping": damping} for damping in others]
        assert {identity(configuration) for configuration in stored} == {identity(found[0].to_dict())}
    # No digit is lost on the way.
    assert sorting(curvature="fisher", damping="running:0.1234567890123").damping == "running:0.1234567890123"


def test_a_configuration_survives_json():
    for config in (sorting(curvature="hessian"), paths(algorithm="bellman-ford")):
        assert type(config).from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (sorting, {"algorithm": "softsrot"}, "did you mean softsort"),
        (sorting, {"algorithm": "fenchel-young"}, "one of neuralsort, softsort, logistic, cauchy"),
        (paths, {"algorithm": "bellman_ford"}, "did you mean bellman-ford"),
        (sorting, {"curvature": "hesian"}, "did you mean hessian"),
        (sorting, {"data": "mnits"}, "did you mean mnist"),
        (paths, {"data": "warcaft"}, "did you mean warcraft"),
        (sorting, {"precision": "fp16"}, "one of float32, tf32, bf16"),
        (sorting, {"numerics": "stabel"}, "did you mean stable"),
        (paths, {"algorithm": "bellman-ford", "loop": "whlie"}, "did you mean while"),
        (paths, {"algorithm": "bellman-ford", "norm": "l3"}, "--norm l3"),
        (
            paths,
            {"algorithm": "smoothed-algorithm", "curvature": "hessian"},
            "no Hessian for smoothing",
        ),
        (sorting, {"damping": 1.0}, "baseline without one"),
        (sorting, {"curvature": "fisher", "damping": -1.0}, "positive number"),
        (sorting, {"curvature": "fisher", "damping": float("nan")}, "positive number"),
        (sorting, {"curvature": "fisher", "damping": "much"}, "--damping much: expected a positive number, running"),
        (sorting, {"curvature": "fisher", "damping": "normalized:0"}, "--damping normalized:0: expected a positive"),
        (sorting, {"curvature": "fisher", "damping": "automatic"}, "--damping automatic"),
        (sorting, {"damping": "auto"}, "baseline without one"),
        (sorting, {"curvature": "fisher", "damping": 1.0, "relative_damping": 1.0}, "not both"),
        (sorting, {"curvature": "fisher", "spectrum": "clip"}, "sum of squares"),
        (sorting, {"curvature": "sample", "exchangeable": True}, "--curvature sample has none"),
        (sorting, {"exchangeable": True}, "--curvature none has none"),
        (sorting, {"steepness": 10.0}, "--steepness does not go with --algorithm softsort"),
        (sorting, {"algorithm": "logistic", "temperature": 1.0}, "has a --steepness"),
        (paths, {"loop": "for"}, "solves exactly"),
        (paths, {"algorithm": "bellman-ford", "num_samples": 3}, "--samples does not go with"),
        (paths, {"algorithm": "bellman-ford", "leave_one_out": True}, "--leave-one-out does not go with"),
        (sorting, {"n": 1}, "at least 2"),
        (paths, {"data": "warcraft", "size": 18}, "have 12×12 cells"),
        (sorting, {"steps": 0}, "at least 1"),
        (sorting, {"device": "gpu"}, "--device gpu"),
        (sorting, {"batch_size": 0}, "--batch-size 0"),
        (sorting, {"batch_size": "x"}, "--batch-size x: expected a whole number"),
        (sorting, {"batch_size": 2.5}, "--batch-size 2.5: expected a whole number"),
        (sorting, {"batch_size": np.int64(4)}, "--batch-size 4 (int64): expected a whole number"),
        (sorting, {"steps": True}, "--steps True: expected a whole number"),
        (sorting, {"learning_rate": "fast"}, "--learning-rate fast: expected a number"),
        (sorting, {"temperature": "hot"}, "--temperature hot: expected a number"),
        (sorting, {"augment": "maybe"}, "--augment maybe: expected true or false"),
        (sorting, {"algorithm": 3}, "--algorithm 3: expected text"),
        (sorting, {"n": None}, "--n None: expected a whole number"),
        (sorting, {"curvature": "fisher", "damping": []}, "expected a number or text"),
        (paths, {"num_samples": "many"}, "--samples many: expected a whole number"),
        (paths, {"drops": "x"}, "--drops x: expected a tuple of whole numbers"),
        (paths, {"drops": 3}, "--drops 3: expected a tuple of whole numbers"),
        (paths, {"drops": (3, "x")}, "--drops (3, 'x'): expected a tuple of whole numbers"),
        (paths, {"drops": (3, 4.5)}, "--drops (3, 4.5): expected a tuple of whole numbers"),
        (paths, {"drops": (True,)}, "--drops (True,): expected a tuple of whole numbers"),
        (convex, {"steps": "some"}, "--steps some: expected a whole number"),
    ],
)
def test_mistakes_speak(make, settings, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        make(**settings)


def test_options_have_the_names_of_the_command():
    assert option("num_samples") == "--samples"
    assert option("relative_damping") == "--relative-damping"
    assert resolve_device("auto") in ("cpu", "cuda")


def test_a_graph_needs_cuda():
    assert sorting(graph=True).graph is False


def test_an_algorithm_without_usual_settings_is_named():
    with pytest.raises(ArgumentError, match=r"--algorithm mine has no \[\[column\]\] in paper.toml"):
        nearest_column("sorting", "mine", n=5)


def test_a_column_of_an_algorithm_without_a_title_has_a_name():
    assert column_title("mine-n5") == "mine n=5"
