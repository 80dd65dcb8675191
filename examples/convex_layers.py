"""A layer whose output is the solution of a convex problem, trained with and without the empirical Fisher.

    pip install 'newton-losses[cvxpy]'
    python examples/convex_layers.py

The layer divides a budget of 1 among five items: it projects Wx + b onto the simplex, min_z ‖z − Wx − b‖² with z ≥ 0
and Σz = 1, and learns from the best division alone. `cvxpylayers` differentiates through the solver sample by sample,
so the weights are repeated over the batch; `repeat_with_fisher` does that, and turns the gradient that comes back into
a Newton step. The paper's own experiment with such layers is `newton-losses reproduce cvxpy`.
"""

import argparse

import cvxpy
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor, nn

from newton_losses.convex import repeat_with_fisher

FEATURES, ITEMS = 8, 5


def simplex_projection() -> CvxpyLayer:
    z, scores = cvxpy.Variable(ITEMS), cvxpy.Parameter(ITEMS)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(z - scores)), [z >= 0, cvxpy.sum(z) == 1])
    return CvxpyLayer(problem, parameters=[scores], variables=[z])


class BudgetLayer(nn.Module):
    def __init__(self, use_fisher: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(ITEMS, FEATURES))
        self.bias = nn.Parameter(torch.zeros(ITEMS))
        self.use_fisher = use_fisher
        self.solve = simplex_projection()

    def forward(self, x: Tensor) -> Tensor:
        if self.use_fisher:
            weight, bias = repeat_with_fisher((self.weight, self.bias), count=len(x))
        else:
            weight, bias = self.weight.expand(len(x), -1, -1), self.bias.expand(len(x), -1)
        return self.solve(torch.einsum("nij,nj->ni", weight, x) + bias)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--samples", type=int, default=50)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    x, truth = torch.randn(arguments.samples, FEATURES), torch.randn(ITEMS, FEATURES)
    best = simplex_projection()(x @ truth.T)[0]
    for name, use_fisher in (("plain", False), ("empirical Fisher", True)):
        torch.manual_seed(1)
        layer = BudgetLayer(use_fisher)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(arguments.steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(layer(x), best).backward()
            optimizer.step()
        print(f"{name:18} loss {nn.functional.mse_loss(layer(x), best):.5f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
