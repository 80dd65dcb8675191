"""Every preset takes its first steps on a CPU: with the paper's settings, on small data, to finite weights."""

import itertools

import pytest
import torch

from newton_losses_bench.cells import cells
from newton_losses_bench.train import make_task
from newton_losses_bench.train_step import Trainer

SMALL = {
    "sorting": {
        "data": "digits", "digits": 1, "batch_size": 3, "steps": 2, "validation_sets": 2, "test_sets": 2,
    },
    "paths": {"data": "terrain", "size": 3, "train_maps": 4, "test_maps": 2, "batch_size": 2, "epochs": 1},
}  # fmt: skip
# The runtimes are of the same cells, only shorter: below.
TRAINED = [
    pytest.param(table, column, id=f"{table}-{column}")
    for table in ("table1", "table2", "table3", "ablation")
    for column in dict.fromkeys(cell.column for cell in cells(table))
]


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


def take_steps(cell, data_root):
    config = cell.make(**SMALL[cell.task], data_root=data_root, device="cpu")
    task = make_task(config)
    trainer = Trainer(task, config)
    before = [parameter.detach().clone() for parameter in task.model.parameters()]
    for _ in range(2):
        trainer.train_step()
        loss = trainer.last_loss()
        assert loss is not None, cell.key
        assert loss >= 0, cell.key
    after = list(task.model.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in after), cell.key
    moved = any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    # A handful of draws of noise around a path that is right has no gradient.
    assert moved or cell.config.get("num_samples"), cell.key
    assert trainer.skipped_samples() == 0, cell.key
    return task


@pytest.mark.parametrize(("table", "column"), TRAINED)
def test_all_cells_of_a_column_take_their_first_steps(table, column, data_root):
    found = [cell for cell in cells(table) if cell.column == column]
    tasks = [take_steps(cell, data_root) for cell in found]
    figures = tasks[0].evaluate()
    for cell, split in itertools.product(found, ("validation", "test")):
        if table in ("table1", "table2", "table3"):
            assert set(cell.paper or {}) <= figures[split].keys()


def test_runtimes_are_of_the_same_cells():
    trained = {cell.key: cell for table in ("table1", "table2", "table3") for cell in cells(table)}
    for cell in cells("runtimes"):
        assert cell.config == trained[cell.key].config
        assert cell.make(device="cpu").eval_every == cell.protocol["eval_every"]
