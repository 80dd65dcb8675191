"""A plain training loop with your own loss, first as it is, then as a Newton loss.

    python examples/quickstart.py

A small network scores items and learns only from how eight of them rank. The loss is one that anybody
could write: squared distance between the wanted ranks and soft ranks by sigmoids. Steep sigmoids
saturate, so most gradients vanish and a few are large. One line changes between the runs. In the third, λ is so
large that nothing is left of the curvature, and the gradient is only divided by its usual size in the run so far:
what that gains is not the curvature's.
"""

import argparse

import torch
from torch import Tensor, nn

import newton_losses as nl


def rank_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """(N, items) to one loss per set of items, (N,)."""
    differences = scores[:, :, None] - scores[:, None, :]
    ranks = torch.sigmoid(100 * differences).sum(2) - 0.5
    return (ranks - wanted).square().sum(1)


def draw_sets(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    items = torch.randn(count, 8, 12, generator=generator)
    worth = torch.sin(2 * items[..., 0]) + items[..., 1] * items[..., 2] + items[..., 3] / 2
    return items, ranks_of(worth)


def ranks_of(scores: Tensor) -> Tensor:
    return scores.argsort(1).argsort(1).float()


def train(loss: nn.Module, seed: int, steps: int) -> float:
    """The share of ranks that the trained network gets right on new sets."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(steps):
        items, wanted = draw_sets(64, generator)
        optimizer.zero_grad()
        loss(network(items).squeeze(-1), wanted).backward()
        optimizer.step()
    items, wanted = draw_sets(4000, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        return (ranks_of(network(items).squeeze(-1)) == wanted).float().mean().item()


class Baseline(nn.Module):
    def forward(self, scores: Tensor, wanted: Tensor) -> Tensor:
        return rank_loss(scores, wanted).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    losses = {
        "baseline": Baseline,
        "Newton loss": lambda: nl.NewtonLoss(rank_loss, curvature="fisher"),
        "normalised": lambda: nl.NewtonLoss(rank_loss, curvature="fisher", damping=nl.RunningDamping(1000.0)),
    }
    print(f"{arguments.steps} steps each; share of ranks right on 4,000 new sets")
    print("seed  " + "  ".join(f"{name:>12s}" for name in losses))
    for seed in range(arguments.seeds):
        print(f"{seed:4d}  ", end="", flush=True)
        for make in losses.values():  # a new one per run: a Newton loss keeps the run's usual size of gradients
            print(f"{100 * train(make(), seed, arguments.steps):11.1f}%", end="  ", flush=True)
        print()


if __name__ == "__main__":
    main()
