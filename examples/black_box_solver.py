"""Train a network through a solver that is not ours: scipy's linear sum assignment.

Workers are to be matched with jobs. What a match costs is unknown: we only see features of each pair, and matchings
that were cheapest under a hidden cost. A linear model predicts the costs, the solver matches, and the Fenchel-Young
loss passes back what was wrong, although the solver has no derivative. It also works as a Newton loss, in one line; on
a problem this easy the two are level. Takes a few seconds on a CPU:

    pip install newton-losses scipy
    python examples/black_box_solver.py
"""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import newton_losses as nl

JOBS, FEATURES = 6, 8


def cheapest_matching(costs: Tensor) -> Tensor:
    """Your solver: a batch of costs `(B, JOBS, JOBS)` to permutation matrices of the same shape."""
    matching = torch.zeros_like(costs)
    for cost, match in zip(costs.cpu().numpy(), matching, strict=True):
        match[linear_sum_assignment(cost)] = 1
    return matching


def make_data(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features `(size, JOBS, JOBS, FEATURES)`, and the matchings that are cheapest under a hidden linear cost."""
    features = torch.randn(size, JOBS, JOBS, FEATURES, generator=generator)
    hidden = torch.linspace(-1, 1, FEATURES)
    return features, cheapest_matching(features @ hidden)


def accuracy(model: torch.nn.Module, features: Tensor, matchings: Tensor) -> float:
    """The share of matchings that are right in every pair."""
    with torch.no_grad():
        found = cheapest_matching(model(features).squeeze(-1))
    return float((found == matchings).flatten(1).all(1).float().mean())


def train(newton: bool, steps: int = 60, seed: int = 0) -> float:
    """The test accuracy after `steps` steps, with the loss as it is or as a Newton loss."""
    generator = torch.Generator().manual_seed(seed)
    features, matchings = make_data(200, generator)
    model = torch.nn.Linear(FEATURES, 1)
    torch.nn.init.normal_(model.weight, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loss = nl.perturbed.FenchelYoungLoss(cheapest_matching, scale=0.5, num_samples=5, generator=generator)
    newton_loss = nl.NewtonLoss(loss, curvature="fisher")
    for _ in range(steps):
        batch = torch.randint(len(features), (16,), generator=generator)
        costs, wanted = model(features[batch]).squeeze(-1), matchings[batch]
        optimizer.zero_grad()
        (newton_loss(costs, wanted) if newton else loss(costs, wanted).mean()).backward()
        optimizer.step()
    return accuracy(model, *make_data(300, generator))


def main() -> None:
    seeds = range(4)
    print("right matchings, mean of four seeds")
    print(f"untrained                      {sum(train(False, 0, seed) for seed in seeds) / 4:6.1%}")
    print(f"Fenchel-Young                  {sum(train(False, seed=seed) for seed in seeds) / 4:6.1%}")
    print(f"Fenchel-Young as a Newton loss {sum(train(True, seed=seed) for seed in seeds) / 4:6.1%}")


if __name__ == "__main__":
    main()
