"""Layers that solve a convex problem, trained as they are and with the empirical Fisher of their weights.

    pip install 'newton-losses[cvxpy]'
    python examples/convex_layers.py --seeds 5 --steps 50

A ReLU layer is the solution of min_z ‖z − Wx − b‖² with z ≥ 0. Two of them and a linear layer are fitted to
random numbers, 300 samples at once. `cvxpylayers` differentiates through the solver sample by sample, so the
weights are repeated over the batch: `repeat_with_fisher` does that and turns the gradient that comes back into
a Newton step. Wx + b is formed before the problem; W as a parameter of the problem is the same function, and
slower to solve. `--exact` takes the solution that is known, max(Wx + b, 0), which is faster and free of the
solver's errors (activations start at 1e-3, it stops at 1e-4); `--out` keeps the curves as JSON.
"""

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import cvxpy
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor, nn

from newton_losses.convex import repeat_with_fisher

SIZE = 20


def relu_problem() -> CvxpyLayer:
    z, affine = cvxpy.Variable(SIZE), cvxpy.Parameter(SIZE)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z - affine)), [z >= 0])
    return CvxpyLayer(problem, parameters=[affine], variables=[z])


class ConvexReLU(nn.Module):
    def __init__(self, damping: float | None, exact: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(1e-3 * torch.randn(SIZE, SIZE))
        self.bias = nn.Parameter(1e-3 * torch.randn(SIZE))
        self.damping = damping
        self.solve = None if exact else relu_problem()

    def forward(self, x: Tensor) -> Tensor:
        if self.damping is None:
            weight, bias = self.weight.expand(len(x), -1, -1), self.bias.expand(len(x), -1)
        else:
            weight, bias = repeat_with_fisher((self.weight, self.bias), len(x), self.damping)
        affine = torch.einsum("nij,nj->ni", weight, x) + bias
        return affine.relu() if self.solve is None else self.solve(affine)[0].to(x.dtype)


def train(damping: float | None, seed: int, steps: int, samples: int, exact: bool) -> list[float]:
    """The loss before every step, and after the last."""
    torch.manual_seed(seed)
    network = nn.Sequential(ConvexReLU(damping, exact), ConvexReLU(damping, exact), nn.Linear(SIZE, 1))
    inputs, targets = torch.randn(samples, SIZE), torch.randn(samples, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for step in range(steps + 1):
        print(f"seed {seed}, step {step} of {steps}", end="\r", file=sys.stderr, flush=True)
        loss = nn.functional.mse_loss(network(inputs), targets)
        losses.append(loss.item())
        if step < steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--seeds", 5), ("--steps", 50), ("--samples", 300)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--damping", type=float, default=0.1)
    parser.add_argument("--exact", action="store_true", help="max(Wx + b, 0) in place of the solver")
    parser.add_argument("--double", action="store_true", help="float64, which also draws other weights and data")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64 if arguments.double else torch.float32)
    runs = []
    print("seed   baseline     Fisher   (loss after the last step)")
    for seed in range(arguments.seeds):
        curves = {
            name: train(damping, seed, arguments.steps, arguments.samples, arguments.exact)
            for name, damping in (("baseline", None), ("fisher", arguments.damping))
        }
        runs.append({"seed": seed, **curves})
        print(f"{seed:4d}  {curves['baseline'][-1]:9.4f}  {curves['fisher'][-1]:9.4f}", flush=True)
        if arguments.out:
            packages = {name: version(name) for name in ("torch", "cvxpy", "cvxpylayers", "diffcp", "scs")}
            facts = {"command": " ".join(["python", *sys.argv]), "python": platform.python_version(), **packages}
            arguments.out.write_text(json.dumps({"facts": facts, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
