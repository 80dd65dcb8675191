"""Lightning's DDP strategy on two ranks gives the weights of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import newton_losses


@pytest.mark.slow
def test_two_ranks_give_the_weights_of_one() -> None:
    pytest.importorskip("lightning")
    here = Path(__file__).parent
    paths = [Path(newton_losses.__file__).parents[1], here.parent]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    weights = []
    for ranks in (1, 2):
        command = [sys.executable, "-W", "ignore", str(here / "lightning_ddp.py"), str(ranks)]
        said = subprocess.check_output(command, text=True, env=environment, timeout=200)
        line = next(line for line in said.splitlines() if line.startswith("weights"))
        weights.append([float(number) for number in line.split()[1:]])
    assert weights[1] == pytest.approx(weights[0], rel=1e-10)
