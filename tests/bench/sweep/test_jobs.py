"""One run of a sweep: going on as it was begun, what it leaves behind, its command and its data."""

from dataclasses import replace
from pathlib import Path

import pytest

from newton_losses_bench.config import SortingConfig
from newton_losses_bench.machine import Interrupted
from newton_losses_bench.store import RunError, checksummed_json, read_json
from newton_losses_bench.sweep import Job, execute, train_command
from newton_losses_bench.train import Progress

CONFIG = SortingConfig(
    algorithm="softsort", data="digits", digits=1, n=3, steps=3, eval_every=1, batch_size=4, validation_sets=5,
    test_sets=5, device="cpu",
)  # fmt: skip


def test_a_run_with_a_checkpoint_is_not_started_over_on_another_device(tmp_path):
    job = Job.of("one", CONFIG.resolved(), tmp_path, "cpu", keep_weights=True)
    execute(job, Progress())
    folder = Path(job.folder)
    (folder / "result.json").unlink()
    config = read_json(folder / "config.json")
    config["configuration"]["device"] = "cuda"
    (folder / "config.json").write_bytes(checksummed_json(config))
    saved = (folder / "checkpoint.pt").read_bytes()
    with pytest.raises(RunError, match="was begun on cuda and cannot resume on cpu"):
        execute(job, Progress())
    assert (folder / "checkpoint.pt").read_bytes() == saved


def test_a_run_resumes_as_it_was_begun_and_starts_over_on_another_device(tmp_path):
    job = Job.of("one", CONFIG.resolved(), tmp_path, "cpu")
    job.configuration["graph"] = True
    execute(job, Progress())
    folder = Path(job.folder)
    assert sorted(file.name for file in folder.iterdir()) == [
        ".lock",
        "config.json",
        "evaluations.jsonl",
        "result.json",
    ]
    (folder / "result.json").unlink()
    config = read_json(folder / "config.json")
    # As if it had been begun on CUDA, where random numbers are others: nothing of it is of use.
    config["configuration"]["device"] = "cuda"
    (folder / "config.json").write_bytes(checksummed_json(config))
    assert execute(job, Progress())["steps"] == 3
    assert (folder / "config.json").read_text().count('"device": "cpu"') == 1


class StopEarly(Progress):
    def evaluated(self, record):
        raise Interrupted(record["step"], 2)


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_resumes_with_averaged_weights_if_it_was_begun_with_them(begun, tmp_path):
    config = replace(CONFIG, eval_every=1)
    with pytest.raises(Interrupted):
        execute(Job.of("one", replace(config, average=begun).resolved(), tmp_path, "cpu"), StopEarly())
    result = execute(Job.of("one", replace(config, average=not begun).resolved(), tmp_path, "cpu"), Progress())
    assert ("averaged" in result) == begun


def test_averaged_weights_that_a_kill_has_left_are_removed(tmp_path):
    job = Job.of("one", replace(CONFIG, average=True).resolved(), tmp_path, "cpu")
    execute(job, Progress())
    left = Path(job.folder) / "weights.average.pt"
    assert not left.exists()
    left.write_bytes(b"")
    execute(job, Progress())
    assert not left.exists()


def test_a_kept_run_has_its_weights(tmp_path):
    job = Job.of("one", CONFIG.resolved(), tmp_path, "cpu", keep_weights=True)
    execute(job, Progress())
    assert (Path(job.folder) / "weights.pt").exists()


def test_a_configuration_as_a_command():
    words = train_command(replace(CONFIG, curvature="fisher", damping=0.1, clip_norm=1.0).to_dict())
    assert " ".join(words) == (
        "train sorting --algorithm softsort --curvature fisher --damping 0.1 --clip-norm 1 --batch-size 4 "
        "--eval-every 1 --data digits --device cpu --n 3 --digits 1 --steps 3 --validation-sets 5 --test-sets 5"
    )


@pytest.mark.parametrize("rate", [0.0012345678, 0.1 + 0.2, 1e-05, 5e-324, 1e38, 3.0, 1234567.0, 2.0**60 + 256])
def test_a_command_has_all_digits_of_a_number(rate):
    words = train_command(replace(CONFIG, learning_rate=rate).to_dict())
    text = words[words.index("--learning-rate") + 1]
    assert float(text) == rate
    assert len(text) <= len(repr(rate))
