"""Train a network through a solver that is not ours: scipy's linear sum assignment.

Workers have to be matched with jobs. What a match costs is unknown; all that is seen are features of
each pair, and matchings that were cheapest by a cost nobody wrote down. A linear model predicts the
costs, the solver matches, and the Fenchel-Young loss carries what was wrong back through the solver,
which has no derivative of its own. Takes a few seconds on a CPU:

    pip install newton-losses scipy
    python examples/black_box_solver.py
"""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from newton_losses.perturbed import FenchelYoungLoss

JOBS, FEATURES = 6, 8


def cheapest_matching(costs: Tensor) -> Tensor:
    """The user's solver: a batch of costs `(B, JOBS, JOBS)` to permutation matrices of the same shape."""
    matching = torch.zeros_like(costs)
    for cost, match in zip(costs.cpu().numpy(), matching, strict=True):
        match[linear_sum_assignment(cost)] = 1
    return matching


def make_data(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features `(size, JOBS, JOBS, FEATURES)`, and the matchings that a hidden linear cost makes cheapest."""
    features = torch.randn(size, JOBS, JOBS, FEATURES, generator=generator)
    hidden = torch.linspace(-1, 1, FEATURES)
    return features, cheapest_matching(features @ hidden)


def accuracy(model: torch.nn.Module, features: Tensor, matchings: Tensor) -> float:
    """The share of matchings that are right in every pair."""
    with torch.no_grad():
        found = cheapest_matching(model(features).squeeze(-1))
    return float((found == matchings).flatten(1).all(1).float().mean())


def newton_gradient(loss: FenchelYoungLoss, costs: Tensor, wanted: Tensor, damping: float) -> Tensor:
    """Each sample's gradient times the inverse of the batch's damped curvature, (H + λI)⁻¹∇ℓᵢ."""
    expansion = loss.expand(costs, wanted, curvature="hessian")
    damped = expansion.curvature + damping * torch.eye(costs[0].numel())
    return torch.linalg.solve(damped, expansion.gradient.mT).mT.reshape(costs.shape)


def train(newton: bool, steps: int = 60, seed: int = 0) -> float:
    """The test accuracy after `steps` steps, with the gradient of the loss or with its Newton step."""
    generator = torch.Generator().manual_seed(seed)
    features, matchings = make_data(200, generator)
    model = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.normal_(model.weight, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loss = FenchelYoungLoss(cheapest_matching, scale=0.5, num_samples=5, generator=generator)
    for _ in range(steps):
        batch = torch.randint(len(features), (16,), generator=generator)
        costs, wanted = model(features[batch]).squeeze(-1), matchings[batch]
        optimizer.zero_grad()
        if newton:
            costs.backward(newton_gradient(loss, costs, wanted, damping=1.0) / len(batch))
        else:
            loss(costs, wanted).mean().backward()
        optimizer.step()
    return accuracy(model, *make_data(300, generator))


def main() -> None:
    print(f"right matchings, untrained:                     {train(False, steps=0):.1%}")
    print(f"right matchings, Fenchel-Young:                 {train(False):.1%}")
    print(f"right matchings, Fenchel-Young and its Hessian: {train(True):.1%}")


if __name__ == "__main__":
    main()
