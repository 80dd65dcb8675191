"""The average of the last weights: what it is, that the training does not notice it, and that it survives a stop."""

import json
from dataclasses import replace

import pytest
import torch
from small_runs import small_runs
from torch import nn

from newton_losses.errors import ArgumentError
from newton_losses_bench.config import ConvexConfig
from newton_losses_bench.machine import Interrupted
from newton_losses_bench.progress import TensorBoard
from newton_losses_bench.store import checksummed_json, read_json, read_record
from newton_losses_bench.train import Progress, make_task, run
from newton_losses_bench.train_step import Trainer, WeightAverage

EVERY, POWER = WeightAverage.EVERY, WeightAverage.POWER
RUNS = small_runs(steps=60, eval_every=15, epochs=8)


class Stop(Progress):
    def evaluated(self, record):
        if record["step"] >= 12:
            raise Interrupted(record["step"], 2)


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("maps"))


def test_the_share_of_a_step_is_a_power_of_its_number():
    torch.manual_seed(0)
    model = nn.BatchNorm1d(3).double()
    average = WeightAverage(model)
    seen = []
    for step in range(1, 25 * EVERY + 1):
        with torch.no_grad():
            model.weight.copy_(torch.randn(3))
            model.running_mean.copy_(torch.randn(3))
        average.follow(step)
        if step % EVERY == 0:
            seen.append((model.weight.detach().clone(), model.running_mean.clone()))
    # What is left of number i after all later ones: proportional to (i + POWER − 1)! / (i − 1)!, nearly a power of i.
    shares = torch.ones(len(seen), dtype=torch.float64)
    for number in range(1, len(seen) + 1):
        for factor in range(POWER):
            shares[number - 1] *= number + factor
    shares /= shares.sum()
    for which, name in enumerate(("weight", "running_mean")):
        wanted = sum(share * tensors[which] for share, tensors in zip(shares, seen, strict=True))
        torch.testing.assert_close(average.tensors[name], wanted, rtol=1e-12, atol=1e-12)
    ages = len(seen) - torch.arange(1, len(seen) + 1)
    assert (shares * ages).sum() / len(seen) == pytest.approx(0.1, abs=0.005)
    assert "num_batches_tracked" not in average.tensors


def assert_follows_its_steps(config):
    trainer = Trainer(make_task(config), config)
    alone = WeightAverage(trainer.task.model)
    for step in range(1, 2 * EVERY + 2):
        trainer.train_step()
        alone.follow(step)
    for name, tensor in alone.tensors.items():
        assert torch.equal(trainer.tensors[f"average.{name}"], tensor)
        assert not torch.equal(trainer.tensors[f"model.{name}"], tensor)


def test_a_trainer_takes_in_its_own_steps():
    assert_follows_its_steps(replace(RUNS["sorting"], average=True).resolved())


def test_the_network_gets_its_own_weights_back():
    model = nn.Linear(2, 1)
    average = WeightAverage(model)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
    own = model.weight.detach().clone()
    with average.in_place():
        assert torch.equal(model.weight, average.tensors["weight"])
        assert not torch.equal(model.weight, own)
    assert torch.equal(model.weight, own)


@pytest.mark.parametrize("task", RUNS)
def test_the_training_does_not_notice_it(task, root, tmp_path):
    config = replace(RUNS[task], data_root=root)
    plain = run(config, str(tmp_path / "plain"))
    both = run(replace(config, average=True), str(tmp_path / "both"))
    assert both["test"] == plain["test"]
    lines = [
        [json.loads(line) for line in (tmp_path / name / "evaluations.jsonl").read_text().splitlines()]
        for name in ("plain", "both")
    ]
    for record in lines[1]:
        assert record.pop("averaged").keys() == {"validation", "test"}
    assert lines[0] == lines[1]
    weights = (tmp_path / "both" / "weights.pt").read_bytes()
    assert weights == (tmp_path / "plain" / "weights.pt").read_bytes()
    assert weights != (tmp_path / "both" / "weights.average.pt").read_bytes()


@pytest.mark.parametrize("task", RUNS)
def test_its_figures_are_those_of_its_weights_on_the_same_sets(task, root, tmp_path):
    config = replace(RUNS[task], data_root=root, average=True).resolved()
    result = run(config, str(tmp_path))
    made = make_task(config)
    drawn = {name: generator.get_state() for name, generator in made.generators.items()}
    records = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    reported = made.reported([{"step": record["step"], **record["averaged"]} for record in records])
    assert result["averaged"] == reported
    assert read_record(tmp_path).averaged == reported["test"]
    # The sets of an evaluation depend on how many there were before it.
    before = next(place for place, record in enumerate(records) if record["step"] == reported["step"])
    for name, generator in made.generators.items():
        generator.set_state(drawn[name])
    made.model.eval()
    with torch.no_grad():
        for _ in range(before):
            made.evaluate()
        made.model.load_state_dict(torch.load(tmp_path / "weights.average.pt", weights_only=True))
        found = made.evaluate()
    assert found == {name: reported[name] for name in found}


@pytest.mark.parametrize("task", RUNS)
def test_it_resumes_where_it_was_stopped(task, root, tmp_path):
    config = replace(RUNS[task], data_root=root, average=True)
    whole = run(config, str(tmp_path / "whole"))

    with pytest.raises(Interrupted):
        run(config, str(tmp_path / "parts"), progress=Stop())
    parts = run(config, str(tmp_path / "parts"))
    assert parts["averaged"] == whole["averaged"]
    assert (tmp_path / "parts" / "weights.average.pt").read_bytes() == (
        tmp_path / "whole" / "weights.average.pt"
    ).read_bytes()


def test_before_it_has_steps_enough_it_is_the_weights(tmp_path):
    config = replace(RUNS["sorting"], steps=EVERY - 1, eval_every=EVERY - 1, average=True)
    result = run(config, str(tmp_path))
    assert result["averaged"]["test"] == result["test"]


def test_a_new_start_and_damage_concern_its_weights_too(tmp_path):
    config = replace(RUNS["sorting"], average=True)
    run(config, str(tmp_path))
    weights = tmp_path / "weights.average.pt"
    weights.write_bytes(weights.read_bytes() + b"x")
    listener = Notes()
    run(config, str(tmp_path), progress=listener)
    assert [note.split(":")[0] for note in listener.notes] == [str(weights)]
    run(replace(config, average=False), str(tmp_path), overwrite=True)
    assert not weights.exists()


def test_a_folder_from_before_there_were_averages_resumes(tmp_path):
    config = RUNS["sorting"]
    with pytest.raises(Interrupted):
        run(config, str(tmp_path), progress=Stop())
    stored = read_json(tmp_path / "config.json")
    assert stored["configuration"].pop("average") is False
    (tmp_path / "config.json").write_bytes(checksummed_json(stored))
    assert run(config, str(tmp_path))["steps"] == 60


def test_its_curves_are_beside_the_others(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(str(tmp_path))
    run(replace(RUNS["sorting"], average=True), str(tmp_path / "run"), progress=board)
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"test/exact_match", "averaged test/exact_match"} <= set(events.Tags()["scalars"])


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
def test_a_captured_step_is_followed_as_one_that_is_not(graph):
    assert_follows_its_steps(replace(RUNS["sorting"], device="cuda", graph=graph, average=True).resolved())


def test_convex_layers_have_none():
    with pytest.raises(ArgumentError, match="--average"):
        ConvexConfig(algorithm="relu-exact", average=True).resolved()
