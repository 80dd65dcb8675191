"""A loss from somebody else's package: `diffsort` 0.2.0 from PyPI, diagnosed, repaired, trained.

    pip install newton-losses diffsort
    python examples/third_party_loss.py

A differentiable sorting network gives a soft permutation matrix, and binary cross-entropy compares it with the
right one: so it is used in its own experiments. Nothing about it raises an error. `nl.diagnose` says what is
wrong: in float32 the gradients of saturated samples are rounding, and torch's cross-entropy cuts its logarithm
off at −100 in the value but not in the derivatives, so that both orders are silently wrong. The same loss in
log space is in this library; a squared distance instead of the cross-entropy would be another way out.
"""

import argparse

import torch
from diffsort import DiffSortNet
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, one_hot

import newton_losses as nl
from newton_losses.diagnose import diagnose

ITEMS, FEATURES, STEEPNESS = 5, 10, 10.0
network_sort = DiffSortNet("odd_even", ITEMS, distribution="logistic", steepness=STEEPNESS)


def their_loss(scores: Tensor, values: Tensor) -> Tensor:
    """One value per sample. diffsort's matrix is transposed: sorted = x @ P."""
    _, matrix = network_sort(scores)
    wanted = one_hot(values.argsort(1), ITEMS).to(scores.dtype).mT
    return binary_cross_entropy(matrix.clamp(0, 1), wanted, reduction="none").mean((1, 2))


same_in_log_space = nl.sorting.SortingLoss("logistic", steepness=STEEPNESS)


def draw_sets(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    items = torch.randn(count, ITEMS, FEATURES, generator=generator)
    return items, 2 * torch.sin(2 * items[..., 0]) + items[..., 1] * items[..., 2]


def train(loss: nn.Module, steps: int, seed: int = 0) -> float:
    """The share of ranks that are right on new sets."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        items, values = draw_sets(100, generator)
        optimizer.zero_grad()
        loss(model(items).squeeze(-1), values).mean().backward()
        optimizer.step()
    items, values = draw_sets(4000, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        return float((model(items).squeeze(-1).argsort(1) == values.argsort(1)).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    generator = torch.Generator().manual_seed(0)
    close, far = (scale * torch.randn(100, ITEMS, generator=generator) for scale in (0.1, 1.0))
    values = torch.randn(100, ITEMS, generator=generator)
    difference = (their_loss(close, values) - same_in_log_space(close, values)).abs().max()
    print(f"largest difference of the two where nothing saturates: {difference:.1e}\n")
    print("as it is:  ", diagnose(their_loss, far, values), "\n")
    print("in log space:  ", diagnose(same_in_log_space, far, values), "\n")
    newton = nl.NewtonLoss(same_in_log_space, curvature="fisher")
    print(f"share of ranks right after {steps} steps")
    for name, loss in (("as it is", their_loss), ("in log space", same_in_log_space), ("as a Newton loss", newton)):
        print(f"  {name:17s} {train(loss, steps):.1%}", flush=True)


if __name__ == "__main__":
    main()
