"""Groups, evaluation, values, dampings, wrappers and compilers under data parallelism, on four processes."""

from typing import Any

import pytest
import torch
from behaviour_worker import NEWTON, gradient, joined, network, part, train
from launch import launch
from scenarios import fourth
from torch import nn

from cases import assert_close, ripples
from newton_losses import ArgumentError, InjectFisher, NewtonLoss, inject_fisher, newton_target

RANKS = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("behaviour_worker", [RANKS], tmp_path_factory.mktemp("ranks"))[RANKS]


def test_none_stays_local(found) -> None:
    for rank in range(RANKS):
        assert_close(
            found[rank]["alone"],
            gradient(network(), NewtonLoss(ripples, damping=2.0, curvature="hessian"), *part(rank)),
            1e-12,
        )


def test_a_group_of_some_ranks(found) -> None:
    ways = {
        "newton": NewtonLoss(ripples, damping=2.0, curvature="hessian"),
        "inject": lambda y, target: fourth(inject_fisher(y, 0.7), target).mean(),
        "products": NewtonLoss(ripples, damping=3.0, matrix_free=True, curvature="hessian"),
    }
    for name, loss in ways.items():
        for first in (0, 2):
            wanted = gradient(network(), loss, *joined(range(first, first + 2)))
            for rank in (first, first + 1):
                assert_close(found[rank]["pairs"][name], wanted, 1e-8 if name == "products" else 1e-10)


def test_evaluation_asks_nothing_of_other_ranks(found) -> None:
    x, target = part(0)
    assert_close(found[0]["evaluation_on_one_rank"], ripples(network()(x), target).mean(), 1e-12)


def test_the_value_is_that_of_the_ranks_own_samples(found) -> None:
    for rank in range(RANKS):
        values = found[rank]["values"]
        assert_close(values["trained"], values["plain"], 1e-12)
        assert_close(values["evaluated"], values["plain"], 1e-12)


def test_what_newton_target_says_of_the_whole_batch(found) -> None:
    x, target = joined(range(RANKS))
    wanted = newton_target(ripples, network()(x), target, damping=2.0, curvature="hessian")
    for rank in range(RANKS):
        fields = found[rank]["target_fields"]
        assert_close(fields["curvature"], wanted.curvature.dense(), 1e-12)
        assert (int(fields["count"]), int(fields["total"]), fields["ranks"]) == (3 + rank, len(x), RANKS)


def test_a_damping_rule_that_differs_by_rank(found) -> None:
    """Products go through all ranks' rows together, each with the damping of its own rank."""
    for rank in range(RANKS):
        steps = found[rank]["rule_that_differs"]
        assert_close(steps["products"], steps["stored"], 1e-5)


def test_one_collective_a_step(found) -> None:
    for rank in range(RANKS):
        assert found[rank]["collectives"] == {"hessian": 1, "fisher": 1, "woodbury": 2}


def test_no_samples_on_any_rank(found) -> None:
    for rank in range(RANKS):
        assert all(not grad.any() for grad in found[rank]["nothing_anywhere"])


def test_each_rank_counts_its_own_skipped_samples(found) -> None:
    for rank in range(RANKS):
        assert {name: int(count) for name, count in found[rank]["skipped"].items()} == {"newton": rank, "inject": rank}


def test_ten_steps_of_training(found) -> None:
    """Parameters equal those of one process with all samples, although the ranks have different numbers of them."""
    wanted = train(nn.Sequential(network(), InjectFisher(0.7)), *joined(range(RANKS)))
    for rank in range(RANKS):
        assert_close(found[rank]["training"], wanted, 1e-8)


def test_fsdp(found) -> None:
    wanted = gradient(network(8), NEWTON, *joined(range(RANKS), 8))
    for rank in range(RANKS):
        assert_close(found[rank]["sharded"], wanted, 1e-10)


def test_torch_func_and_compile(found) -> None:
    wanted = gradient(network(), NEWTON, *joined(range(RANKS)))
    for rank in range(RANKS):
        assert_close(found[rank]["transforms"]["grad"], wanted, 1e-10)
        assert "process_group=None" in found[rank]["transforms"]["vmap"]
        assert_close(found[rank]["compiled"], wanted, 1e-10)


def test_without_other_processes_nothing_changes() -> None:
    for group in ("default", None):
        assert NewtonLoss(ripples, process_group=group, curvature="hessian").options["process_group"] == group


@pytest.mark.parametrize("group", ["world", 0, [0, 1]])
def test_what_is_not_a_group(group: object) -> None:
    for make in (
        lambda: NewtonLoss(ripples, process_group=group, curvature="hessian"),
        lambda: InjectFisher(process_group=group),
        lambda: inject_fisher(torch.ones(2, 2), process_group=group),
        lambda: newton_target(ripples, torch.ones(2, 2), torch.ones(2, 2), process_group=group, curvature="hessian"),
    ):
        with pytest.raises(ArgumentError, match="process_group="):
            make()
