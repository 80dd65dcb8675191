"""Learning to rank on a real table: scikit-learn's diabetes set, 442 patients, the disease a year later.

    pip install newton-losses scikit-learn
    python examples/learning_to_rank.py

A sample is a list of eight patients, and all that training sees is their order by progression of the disease.
The loss is the SoftSort cross-entropy of `nl.sorting`, as it is and as a Newton loss; the measure is Kendall's τ
between scores and progression over all pairs of the test patients.
"""

import argparse
from copy import deepcopy

import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import newton_losses as nl

LIST = 8


def load(seed: int) -> tuple[Tensor, ...]:
    """Training and test features, training and test progressions."""
    features, progression = load_diabetes(return_X_y=True)
    parts = train_test_split(20 * features, progression, test_size=0.3, random_state=seed)
    return tuple(torch.as_tensor(part, dtype=torch.float32) for part in parts)


def kendall(scores: Tensor, truth: Tensor) -> float:
    """(concordant − discordant pairs) / pairs that are not tied in the truth."""
    ordered = torch.sign(scores[:, None] - scores[None, :]) * torch.sign(truth[:, None] - truth[None, :])
    return float(ordered.sum() / torch.sign(truth[:, None] - truth[None, :]).abs().sum())


def train(loss: nn.Module, seed: int, steps: int) -> float:
    features, test_features, progression, test_progression = load(seed)
    loss = deepcopy(loss)  # a Newton loss keeps the size of the gradients it has seen
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(features.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(steps):
        lists = torch.randint(len(features), (32, LIST), generator=generator)
        optimizer.zero_grad()
        loss(model(features[lists]).squeeze(-1), progression[lists]).mean().backward()
        optimizer.step()
    with torch.no_grad():
        return kendall(model(test_features).squeeze(-1), test_progression)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    ranking = nl.sorting.SortingLoss("softsort", temperature=0.1)
    losses = {
        "as it is": ranking,
        "Fisher": nl.NewtonLoss(ranking, "fisher"),
        "Hessian": nl.NewtonLoss(ranking, "hessian"),
    }
    print(f"Kendall's τ on 133 test patients after {arguments.steps} steps")
    print("seed  " + "  ".join(f"{name:>9s}" for name in losses))
    found = []
    for seed in range(arguments.seeds):
        found.append([train(loss, seed, arguments.steps) for loss in losses.values()])
        print(f"{seed:4d}  " + "  ".join(f"{tau:9.3f}" for tau in found[-1]), flush=True)
    print("mean  " + "  ".join(f"{tau:9.3f}" for tau in torch.tensor(found).mean(0).tolist()))


if __name__ == "__main__":
    main()
