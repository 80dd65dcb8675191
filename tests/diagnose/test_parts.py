"""What a part of a batch is compared with: all of it where that is quick, else twice as many samples."""

import pytest
import torch
from torch import Tensor

from newton_losses import ShapeError, diagnose
from newton_losses.diagnose import _parts
from newton_losses.diagnose._probe import Probe


def test_an_error_of_the_loss_names_the_batch_that_was_given() -> None:
    with pytest.raises(ShapeError, match=r"\(64, 3\)"):
        diagnose(lambda y: y.square(), torch.ones(64, 3))


@pytest.mark.parametrize(("budget", "most"), [(0.0, 8), (60.0, 64)])
def test_a_slow_loss_is_not_asked_for_the_whole_batch(budget: float, most: int, monkeypatch) -> None:
    monkeypatch.setattr(_parts, "WHOLE_BUDGET", budget)
    asked: list[int] = []

    def loss(y: Tensor) -> Tensor:
        asked.append(len(y))
        return y.square().sum(1)

    _parts.check_parts(Probe(loss, torch.ones(64, 3), (), None))
    assert max(asked) == most
