"""A step on several processes equals the step of one process with the whole batch."""

import pytest
import torch
from launch import launch
from scenarios import SCENARIOS, Scenario

from cases import assert_close


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, dict[str, torch.Tensor]]]]:
    """What every rank of 2 and of 4 found in every scenario, from one launch."""
    return launch("equality_worker", [2, 4], tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_gradients_equal_those_of_one_process(scenario: Scenario, ranks: int, found) -> None:
    wanted = scenario.run(0, ranks, alone=True)
    for rank in range(ranks):
        for name in ("weight", "bias"):
            assert_close(found[ranks][rank][scenario.name][name], wanted[name], scenario.tolerance)
    if scenario.size:
        assert wanted["weight"].abs().sum() > 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_quadratic_value_of_a_rank_is_that_of_its_own_samples(ranks: int, found) -> None:
    scenario = SCENARIOS["quadratic"]
    counts = scenario.counts(ranks)
    values = [found[ranks][rank]["quadratic"]["value"] for rank in range(ranks)]
    total = sum(count * value for count, value in zip(counts, values, strict=True))
    assert_close(total / sum(counts), scenario.run(0, ranks, alone=True)["value"], scenario.tolerance)


@pytest.mark.gpu
def test_on_a_device_that_two_ranks_share(tmp_path) -> None:
    """Through gloo, since NCCL wants a device for each rank."""
    found = launch("gpu_worker", [2], tmp_path)[2]
    for name, scenario in SCENARIOS.items():
        wanted = scenario.run(0, 2, alone=True)
        for rank in range(2):
            for part in ("weight", "bias"):
                # matrix-free, the device runs all iterations and the CPU stops early: both within 1e-6 of the gradient
                assert_close(found[rank][name][part], wanted[part], max(1e-5, scenario.tolerance))
