"""On CUDA, a captured step is the eager step."""

from dataclasses import replace

import pytest
import torch

from newton_losses_bench.config import PathsConfig, SortingConfig
from newton_losses_bench.train import make_task
from newton_losses_bench.train_step import Trainer

pytestmark = pytest.mark.gpu

SORTING = SortingConfig(algorithm="softsort", data="digits", digits=2, n=5, steps=20, batch_size=16, device="cuda")
PATHS = PathsConfig(
    algorithm="fenchel-young", size=4, train_maps=20, test_maps=4, batch_size=8, num_samples=3, device="cuda"
)


def trained(config, steps, graph):
    config = replace(config, graph=graph).resolved()
    trainer = Trainer(make_task(config), config)
    losses = []
    for _ in range(steps):
        trainer.train_step()
        losses.append(trainer.last_loss())
    return trainer, losses


def check(config, steps):
    captured, fast = trained(config, steps, graph=True)
    eager, slow = trained(config, steps, graph=False)
    # Convolutions sum in an order of their own choice: float32 rounding, grown by a few steps of Adam.
    assert fast == pytest.approx(slow, rel=1e-2)
    for name, generator in captured.task.generators.items():
        assert torch.equal(generator.get_state(), eager.task.generators[name].get_state()), name


@pytest.mark.parametrize("curvature", ["none", "fisher", "hessian", "sample", "energy"])
@pytest.mark.parametrize("algorithm", ["neuralsort", "softsort", "logistic", "cauchy"])
def test_a_captured_sorting_step_is_the_eager_one(algorithm, curvature):
    check(replace(SORTING, algorithm=algorithm, curvature=curvature), 5)


@pytest.mark.parametrize("curvature", ["none", "fisher", "hessian", "sample", "energy"])
@pytest.mark.parametrize("algorithm", ["bellman-ford", "smoothed-loss", "smoothed-algorithm", "fenchel-young"])
def test_a_captured_paths_step_is_the_eager_one(algorithm, curvature, tmp_path):
    if (algorithm, curvature) == ("smoothed-algorithm", "hessian"):
        pytest.skip("has no Hessian")
    extra = {"num_samples": None} if algorithm == "bellman-ford" else {}
    # Seven steps: two epochs and a partial batch in each.
    check(replace(PATHS, algorithm=algorithm, curvature=curvature, data_root=str(tmp_path), **extra), 7)


def test_capturing_leaves_no_trace():
    config = SORTING.resolved()
    task = make_task(config)
    weights = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    seeds = {name: generator.get_state() for name, generator in task.generators.items()}
    trainer = Trainer(task, config)
    assert all(torch.equal(weights[name], tensor) for name, tensor in task.model.state_dict().items())
    assert all(torch.equal(seeds[name], generator.get_state()) for name, generator in task.generators.items())
    assert all(not tensor.any() for name, tensor in trainer.tensors.items() if name.startswith("optimizer"))


def test_a_restored_captured_trainer_continues_alike():
    trainer, _ = trained(SORTING, 3, graph=True)
    state = trainer.state()
    trainer.train_step()
    expected = trainer.last_loss()
    other, _ = trained(SORTING, 1, graph=True)
    other.restore(state)
    other.train_step()
    assert other.last_loss() == pytest.approx(expected, rel=1e-4)


def test_a_captured_step_without_a_finite_loss_is_not_in_the_mean():
    trainer, losses = trained(SORTING, 3, graph=True)
    with torch.no_grad():
        next(trainer.task.model.parameters()).fill_(torch.nan)
    trainer.train_step()
    assert trainer.last_loss() is None
    assert trainer.take_mean_loss() == (pytest.approx(sum(losses) / 3, rel=1e-12), 3)


def test_bf16_convolutions_keep_float32_scores():
    config = replace(SORTING, precision="bf16").resolved()
    task = make_task(config)
    images = torch.rand(3, 5, 1, 8, 16, device="cuda")
    assert task.model(images).dtype == torch.float32
    check(replace(SORTING, precision="bf16"), 3)


# The compiler looks at the `.grad` of what it is given, which here is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_network_is_captured():
    check(replace(SORTING, compile=True), 3)
