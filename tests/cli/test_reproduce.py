"""`reproduce` and `sweep` as a person uses them: what they run, what they print, what they refuse."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from cli.running import command, in_one_line
from newton_losses_bench.cells import TABLES, cells
from newton_losses_bench.config import SortingConfig, run_name
from newton_losses_bench.store import Store
from newton_losses_bench.sweep import Failure, Job, SweepResult

SMALL = [
    *("--digits", "1", "--batch-size", "4", "--validation-sets", "5", "--test-sets", "5"),
    *("--data", "digits", "--device", "cpu"),
]


def pretend(store, config, figures, averaged=None):
    """A finished run that nobody ran."""
    configuration = config.to_dict()
    end = {"step": 1, "test": figures}
    result = {"configuration": configuration, "test": figures, "reported": end, "final": end, "steps": 1,
              "seconds": 1.0, "milliseconds_per_step": figures.get("time", 1.0)}  # fmt: skip
    if averaged is not None:
        result["averaged"] = {"step": 1, "test": averaged}
    folder = store / run_name(configuration)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def measured(tmp_path):
    """A table that is done: no run is left, so that only its figures are printed."""
    for cell in cells("table1", only="softsort-n5", numerics="reference", controls=False):
        for seed in range(3):
            better = 0 if cell.variant == "baseline" else 10
            figures = {"exact_match": 70.0 + better + seed, "element_wise": 90.0}
            pretend(tmp_path, cell.make(seed=seed, device="cpu"), figures)
    return tmp_path


def test_a_finished_table_is_printed_beside_the_papers(measured, monkeypatch):
    monkeypatch.setattr("newton_losses_bench.cli._sweep._check_needs", lambda configs: None)
    words = ("--only", "softsort-n5", "--numerics", "reference", "--no-controls", "--seeds", "3")
    code, text = command("reproduce", "table1", *words, "--results", str(measured))
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "9 runs, 9 already finished"
    assert lines[2] == "100,000 steps, mnist, float32"
    assert " ".join(lines[4].split()) == (
        "softsort-n5-baseline 3 71.00 ± 1.00 70.70 ± 2.60 +0.30 90.00 ± 0.00 86.75 ± 1.26 +3.25"
    )
    assert " ".join(lines[6].split()).startswith("softsort-n5-fisher 3 81.00 ± 1.00** 84.03 ± 0.59** -3.03 ")
    assert "not the paper's" not in text


def test_lengths_are_kept_apart(measured, monkeypatch):
    monkeypatch.setattr("newton_losses_bench.cli._sweep._check_needs", lambda configs: None)
    cell = cells("table1", only="softsort-n5-fisher", numerics="reference")[0]
    pretend(measured, cell.make(steps=10_000, device="cpu"), {"exact_match": 12.34, "element_wise": 50.0})
    words = ("--only", "softsort-n5-fisher", "--numerics", "reference", "--results", str(measured), "--seeds")
    _, short = command("reproduce", "table1", *words, "1", "--steps", "10000")
    assert "10,000 steps, mnist, float32 (not the paper's length)" in short
    assert "12.34" in short
    assert "81.00" not in short
    _, full = command("reproduce", "table1", *words, "3")
    assert "12.34" not in full
    _, listed = command("reproduce", "list", "table1", "--only", "softsort-n5-fisher", "--results", str(measured))
    assert "3 × 100,000 steps, mnist, float32; 1 × 10,000 steps, mnist, float32" in listed


def test_runtimes_are_ratios(tmp_path, monkeypatch):
    monkeypatch.setattr("newton_losses_bench.cli._sweep._check_needs", lambda configs: None)
    for cell in cells("runtimes", only="softsort-n10"):
        time = {"baseline": 2.0, "hessian": 3.0, "fisher": 2.5}[cell.variant]
        pretend(tmp_path, cell.make(device="cpu"), {"time": time})
    _, text = command("reproduce", "runtimes", "--only", "softsort-n10", "--seeds", "1", "--results", str(tmp_path))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("softsort")}
    assert rows["softsort-n10-hessian"] == ["1", "3.000", "1.50", "1.19"]
    assert rows["softsort-n10-baseline"] == ["1", "2.000"]


def test_convex_layers_are_compared_seed_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr("newton_losses_bench.cli._sweep._check_needs", lambda configs: None)
    for cell in cells("cvxpy"):
        for seed, loss in ((0, 0.3), (1, 0.2)):
            pretend(tmp_path, cell.make(seed=seed), {"loss": loss if cell.variant == "baseline" else 0.25})
    _, text = command("reproduce", "cvxpy", "--seeds", "2", "--results", str(tmp_path))
    assert "Fisher is below the baseline on 1 of 2 seeds; in the paper on 5 of 5." in text
    assert "0.303 ± 0.132" in text  # the paper's five seeds


def test_two_runs_at_once_from_nothing_to_a_table(tmp_path):
    words = [*SMALL, "--steps", "3", "--eval-every", "3", "--seeds", "1", "--numerics", "reference"]
    only = ("--only", "softsort-n5-clip,softsort-n5-energy")
    code, text = command("reproduce", "table1", *words, *only, "--jobs", "2", "--results", str(tmp_path))
    assert code == 0, text
    assert "[2/2]" in text
    changes = "batch size 4, eval every 3, digits 1, validation sets 5, test sets 5"
    assert f"3 steps, digits, float32, {changes} (not the paper's length, not the paper's data)" in text
    records = Store(tmp_path).records()
    assert sorted((record.configuration["curvature"], record.configuration["clip_norm"]) for record in records) == [
        ("energy", None), ("none", 1.0),
    ]  # fmt: skip
    assert all("--algorithm softsort" in record.environment["command"] for record in records)
    # Once more: nothing is run, and the same table is printed.
    again = command("reproduce", "table1", *words, *only, "--results", str(tmp_path))
    assert again[0] == 0
    assert "2 runs, 2 already finished" in again[1]


def test_what_would_be_run(tmp_path):
    (cell,) = cells("table1", only="logistic-n10-fisher", numerics="reference")
    words = ("--steps", "10000", "--seeds", "2", "--only", "logistic-n10-fisher", "--device", "cpu", "--dry-run")
    words += ("--numerics", "reference", "--precision", "bf16", "--results", str(tmp_path))
    code, text = command("reproduce", "table1", *words)
    assert code == 0
    assert text.splitlines() == [
        f"logistic-n10-fisher, seed {seed}: newton-losses train sorting --algorithm logistic --curvature fisher "
        f"--damping 0.1 --spectrum raw --learning-rate 0.001{' --seed 1' if seed else ''} --device cpu "
        f"--precision bf16 --n 10 --steepness 10 --numerics reference --steps 10000 --out {folder}"
        for seed in (0, 1)
        for folder in [
            tmp_path / run_name(cell.make(seed=seed, steps=10_000, precision="bf16", device="cpu").to_dict())
        ]
    ]


def test_a_printed_command_trains_what_the_table_lacks(tmp_path):
    """In the folder where the table looks for it; also that of convex layers, which `train` does not know."""
    for words in (
        ("sweep", "sorting", "-a", "softsort", "--n", "3", "--steps", "2", *SMALL),
        ("reproduce", "cvxpy", "--algorithm", "relu-exact", "--steps", "2", "--only", "relu-fisher", "--damping", "2"),
    ):
        words += ("--seed", "1", "--device", "cpu", "--results", str(tmp_path))
        _, listed = command(*words, "--dry-run")
        (line,) = listed.splitlines()
        code, _ = command(*shlex.split(line.partition(": newton-losses ")[2]))
        assert code == 0
        assert command(*words, "--dry-run")[1].splitlines() == [f"1 of 1 runs are already in {tmp_path}."]


def test_all_cells_are_listed(tmp_path):
    code, text = command("reproduce", "list", "--results", str(tmp_path / "nothing"))
    assert code == 0
    for table in TABLES:
        found = cells(table)
        assert f"{table}: {len(found)} cells, 0 of them with runs" in text
        assert all(f"  {cell.key} " in text for cell in found)


def test_a_sweep_takes_the_automatic_damping_too(tmp_path):
    words = ("--algorithm", "softsort", "--curvature", "fisher", "--damping", "auto,normalized:3,10")
    code, text = command("sweep", "sorting", *words, "--dry-run", "--results", str(tmp_path))
    assert code == 0
    assert [line.split("--damping ")[1].split()[0] for line in text.splitlines()] == ["running", "normalized:3", "10"]


def test_a_damping_goes_to_the_cells_that_take_one(tmp_path):
    words = ("--algorithm", "softsort", "--curvature", "none,fisher", "--damping", "0.1,10", "--dry-run")
    code, text = command("sweep", "sorting", *words, "--results", str(tmp_path))
    assert code == 0
    note, *lines = text.splitlines()
    assert note == "--damping applies to fisher, hessian and sample only."
    assert [line.split(":")[0] for line in lines] == [
        "curvature none, seed 0", "curvature fisher, damping 0.1, seed 0", "curvature fisher, damping 10, seed 0",
    ]  # fmt: skip
    assert ["--damping" in line for line in lines] == [False, True, True]
    # Nothing to say where all take it.
    code, text = command("sweep", "sorting", "--algorithm", "softsort", "-c", "fisher", "--damping", "1", "--dry-run")
    assert code == 0
    assert len(text.splitlines()) == 1


def test_so_do_all_settings_of_a_curvature(tmp_path):
    words = ("--algorithm", "softsort", "-c", "none,fisher,hessian", "--relative-damping", "2", "--spectrum", "clip")
    code, text = command("sweep", "sorting", *words, "--dry-run", "--results", str(tmp_path))
    assert code == 0
    notes, lines = text.splitlines()[:2], text.splitlines()[2:]
    assert [note.split()[0] for note in notes] == ["--relative-damping", "--spectrum"]
    assert ["--relative-damping 2" in line for line in lines] == [False, True, True]
    assert ["--spectrum clip" in line for line in lines] == [False, False, True]


def test_settings_have_the_names_of_their_options():
    words = ("--algorithm", "smoothed-loss", "--samples", "3,10", "--scale", "0.1,2", "--device", "cpu", "--dry-run")
    _, listed = command("sweep", "paths", *words)
    assert [line.split(":")[0] for line in listed.splitlines()] == [
        f"scale {scale}, samples {samples}, seed 0" for scale in (0.1, 2) for samples in (3, 10)
    ]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("reproduce", "tabel1"), "Did you mean 'table1'"),
        (("reproduce", "list", "tabel1"), "reproduce list tabel1: did you mean table1"),
        (("sweep", "sorting", "--algorithm", "softsort", "--damping", "1"), "baseline without one"),
        (("sweep", "sorting", "-a", "softsort", "-c", "none,fisher", "--spectrum", "clip"), "can have them"),
        (("reproduce", "table1", "--only", "quicksort"), "lists them by name"),
        (("reproduce", "table1", "--numerics", "exact"), "--numerics exact"),
        (("reproduce", "table2", "--steps", "5"), "No such option: --steps"),
        (("reproduce", "table1", "--epochs", "5"), "No such option: --epochs"),
        (("reproduce", "runtimes", "--jobs", "2"), "leave it out"),
        (("reproduce", "table1", "--seeds", "a"), "name them, as in 4,7 or 0-9"),
        (("reproduce", "table1", "--seeds", "0"), "at least 1"),
        (("reproduce", "table1", "--seed", "1", "--seeds", "2"), "give one of them"),
        (("reproduce", "table1", "--jobs", "0", *SMALL), "at least 1"),
        (("reproduce", "table1", "--batchsize", "3"), "--batch-size"),
        (("reproduce", "table1", "--batch-size", "x"), "--batch-size x: expected a whole number"),
        (("reproduce", "table1", "--graph"), "No such option: --graph"),
        (("reproduce", "table1", "--data-root", "nowhere"), "newton-losses data fetch mnist"),
        (("sweep", "sorting", "--damping", "1"), "Missing option '--algorithm'"),
        (("sweep", "sorting", "--algorithm", "softsort", "--dampnig", "1"), "--damping"),
        (("sweep", "sorting", "--algorithm", "softsrot"), "did you mean softsort"),
        (
            ("sweep", "sorting", "--algorithm", "softsort", "-c", "fisher", "--damping", "one"),
            "positive number, running",
        ),
        (("sweep", "sorting", "--algorithm", "softsort", "--n", "five"), "--n five: expected a whole number"),
        (("sweep", "sorting", "--algorithm", "softsort", "--augment", "1"), "--augment 1: expected true or false"),
        (("sweep", "sorting", "--algorithm"), "requires an argument"),
        (("sweep", "sorting", "-a", "softsort", "cauchy"), "unexpected extra argument"),
        (("sweep", "sorting", "-a", "softsort", "--out", "x"), "No such option: --out"),
    ],
)
def test_mistakes_are_answered(words, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = command(*words)
    assert code == 2
    assert answer in in_one_line(text)


def test_convex_layers_without_their_package(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, text = command("reproduce", "cvxpy", "--results", str(tmp_path))
    assert code == 2
    assert "newton-losses[cvxpy]" in text


def test_a_sweep_tells_averaged_figures_of_the_seeds_that_have_them(tmp_path):
    for seed, averaged in ((0, {"exact_match": 30.0}), (1, {"exact_match": 32.0}), (2, None)):
        config = SortingConfig(algorithm="softsort", data="digits", n=3, seed=seed, device="cpu").resolved()
        pretend(tmp_path, config, {"exact_match": 20.0 + seed}, averaged)
    words = ("--algorithm", "softsort", "--data", "digits", "--n=3", "--seeds", "3", "--average")
    code, text = command("sweep", "sorting", *words, "--results", str(tmp_path), "--device", "cpu")
    assert code == 0
    assert text.splitlines()[-1].split(": ", 1)[1] == (
        "exact match 21.00 ± 1.00 % (3 seeds), averaged: exact match 31.00 ± 1.41 % (2 seeds)"
    )
    assert "1 of 3 runs were trained without averaged weights and have none." in text
    _, text = command("sweep", "sorting", *words[:-1], "--results", str(tmp_path), "--device", "cpu")
    assert "have none" not in text


def test_a_grid_of_ones_own(tmp_path):
    words = ("--algorithm", "softsort", "-c", "fisher", "--damping", "0.1,10", "--data", "digits", "--n=3")
    options = ("--seeds", "2", "--results", str(tmp_path), "--device", "cpu")
    _, listed = command("sweep", "sorting", *words, *options, "--dry-run")
    assert [line.split(":")[0] for line in listed.splitlines()] == [
        "damping 0.1, seed 0", "damping 10, seed 0", "damping 0.1, seed 1", "damping 10, seed 1",
    ]  # fmt: skip
    for seed in (0, 1):
        for damping in (0.1, 10.0):
            config = SortingConfig(
                algorithm="softsort", curvature="fisher", damping=damping, data="digits", n=3, seed=seed, device="cpu"
            )
            pretend(tmp_path, config.resolved(), {"exact_match": damping + seed})
        _, listed = command("sweep", "sorting", *words, *options, "--dry-run")
        note, *left = listed.splitlines()
        assert note.startswith(f"{2 + 2 * seed} of 4 runs are already in ")
        assert len(left) == 2 - 2 * seed
    code, text = command("sweep", "sorting", *words, *options)
    assert code == 0
    assert text.splitlines()[-2:] == [
        "damping 10: exact match 10.50 ± 0.71 % (2 seeds)",
        "damping 0.1: exact match 0.60 ± 0.71 % (2 seeds)",
    ]


@pytest.mark.slow
def test_control_c_stops_all_runs_and_says_how_to_go_on(tmp_path):
    words = [*SMALL, "--steps", "100000", "--eval-every", "20", "--seeds", "1", "--results", str(tmp_path)]
    line = [sys.executable, "-m", "newton_losses", "reproduce", "table1", *words, "--only", "softsort-n5", "-j", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    sweep = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len([run for run in Store(tmp_path).unfinished() if run.step]) < 2:
        assert sweep.poll() is None
        time.sleep(0.1)
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "stopped with 0 of 8 runs finished" in errors
    assert "newton-losses reproduce table1" in errors
    # Both have saved beyond their last evaluation, or at it, and have let go of their folders.
    assert len(list(tmp_path.glob("*/checkpoint.pt"))) == 2


def test_what_is_not_the_cell_s_own_is_in_the_label():
    words = ("--only", "cauchy-n5-hessian", "--numerics", "stable", "--seeds", "1", "--dry-run")
    code, text = command("reproduce", "table1", *words, "--spectrum", "absolute", "--damping", "10")
    assert code == 0
    assert text.startswith("cauchy-n5-hessian-stable, damping 10, spectrum absolute, seed 0: newton-losses train")
    words = ("--algorithm", "cauchy", "-c", "hessian", "--damping", "0.1", "--dry-run")
    told = [command("sweep", "sorting", *words, *more)[1].split(":")[0] for more in ((), ("--spectrum", "absolute"))]
    assert told == [
        f"sorting n=5, cauchy (stable), hessian λ=0.1{more}, seed 0" for more in ("", ", spectrum absolute")
    ]


def test_several_patterns_with_stars():
    words = ("--only", "neuralsort*n5*, softsort*n5*", "--numerics", "reference", "--no-controls", "--seeds", "1")
    code, text = command("reproduce", "table1", *words, "--dry-run")
    assert code == 0
    arms = [f"{name}-n5-{arm}" for name in ("neuralsort", "softsort") for arm in ("baseline", "hessian", "fisher")]
    assert [line.split(",")[0] for line in text.splitlines()] == arms


def test_how_a_sweep_ended(tmp_path, monkeypatch):
    failures = tuple(Failure(Job(name, "folder", {}), f"{name} is broken", "log.txt") for name in ("one", "two"))

    def told_of(result):
        monkeypatch.setattr("newton_losses_bench.cli._sweep.run_sweep", lambda *_: result)
        return command("sweep", "sorting", "-a", "softsort", *SMALL, "--results", str(tmp_path))[1]

    told = told_of(SweepResult(3, 0, 1, failures, None))
    assert "failed: one\n  one is broken\n  its full output: log.txt" in told
    assert "failed: two\n  two is broken" in told
    assert "2 of 3 runs failed, 1 are finished." in told
    told = told_of(SweepResult(3, 0, 0, failures, signal.SIGINT))
    assert "stopped with 0 of 3 runs finished; the others have saved their progress." in told


def test_two_runs_that_fail_at_the_same_moment_are_both_reported_in_a_sentence(tmp_path, monkeypatch):
    """A folder that is no run's is refused by the process of the run."""
    words = ("sweep", "sorting", "-a", "softsort", "--n", "3", "--steps", "2", *SMALL, "--seeds", "2", "--jobs", "2")
    monkeypatch.setattr("newton_losses_bench.sweep.processes._RETRY_SECONDS", 0.0)
    _, listed = command(*words, "--dry-run", "--results", str(tmp_path))
    assert len(listed.splitlines()) == 2
    monkeypatch.setattr("newton_losses_bench.cli._sweep._check_needs", lambda configs: None)
    gone = ("--data", "mnist", "--data-root", str(tmp_path / "nowhere"))
    code, text = command(*words, *gone, "--results", str(tmp_path / "store"))
    assert code == 1
    assert "2 of 2 runs failed, 0 are finished." in text
    assert text.count("newton-losses data fetch mnist") >= 2
    assert "Traceback" not in text
