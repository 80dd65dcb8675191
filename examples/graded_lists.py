"""Learning to rank lists of different lengths: scikit-learn's diabetes set, 442 patients, grouped by sex and age.

    pip install newton-losses scikit-learn lightgbm
    python examples/graded_lists.py

A list holds the patients of one sex and one range of five years; the grade of a patient is the fifth of the whole set
that the progression of the disease is in, 0 to 4. Lists are padded, and a mask says which patients exist. The measure
is NDCG@5 over the lists of held-out patients, on average over splits; LightGBM's ranker sees the same lists.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import newton_losses as nl
from newton_losses.sorting import ListNetLoss, NDCGLoss, ndcg, pad_lists

Lists = tuple[Tensor, Tensor, Tensor]


def load(seed: int) -> tuple[Lists, Lists]:
    """Features `(N, n, d)`, grades and mask of the training lists, and of those of held-out patients."""
    features, progression = load_diabetes(return_X_y=True)
    grades = np.searchsorted(np.quantile(progression, [0.2, 0.4, 0.6, 0.8]), progression)
    age = load_diabetes(scaled=False).data[:, 0]
    group = 100 * (features[:, 1] > 0) + age // 5
    held_out = np.random.default_rng(seed).random(len(features)) < 0.3
    return lists(20 * features, grades, group, ~held_out), lists(20 * features, grades, group, held_out)


def lists(features: np.ndarray, grades: np.ndarray, group: np.ndarray, chosen: np.ndarray) -> Lists:
    members = [np.flatnonzero(chosen & (group == one)) for one in np.unique(group)]
    index, mask = pad_lists([torch.as_tensor(member) for member in members if len(member) > 1])
    return torch.as_tensor(features, dtype=torch.float32)[index], torch.as_tensor(grades)[index], mask


def train(loss: nn.Module, seed: int, steps: int) -> float:
    (features, grades, mask), (test, test_grades, test_mask) = load(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(features.shape[-1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(features).squeeze(-1), grades, mask=mask).mean().backward()
        optimizer.step()
    with torch.no_grad():
        return measure(model(test).squeeze(-1), test_grades, test_mask)


def measure(scores: Tensor, grades: Tensor, mask: Tensor) -> float:
    return float(ndcg(scores, grades, min(5, scores.shape[-1]), mask=mask).mean())


def lightgbm_ranker(seed: int) -> float:
    from lightgbm import LGBMRanker

    (features, grades, mask), (test, test_grades, test_mask) = load(seed)
    ranker = LGBMRanker(n_estimators=100, min_child_samples=5, random_state=seed, n_jobs=1, verbose=-1)
    ranker.fit(features[mask].numpy(), grades[mask].numpy(), group=mask.sum(-1).tolist())
    scores = torch.zeros(test_mask.shape)
    scores[test_mask] = torch.as_tensor(ranker.predict(test[test_mask].numpy()), dtype=torch.float32)
    return measure(scores, test_grades, test_mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    soft = NDCGLoss("softsort", temperature=0.1)
    losses = {
        "NDCG": soft,
        "NDCG, Newton": nl.NewtonLoss(soft),
        "NDCG, Fisher": nl.NewtonLoss(soft, "fisher"),
        "ListNet": ListNetLoss(),
        "ListNet, Newton": nl.NewtonLoss(ListNetLoss()),
    }
    print(f"NDCG@5 of held-out lists after {arguments.steps} steps, {arguments.seeds} splits")
    found = {
        name: [train(loss, seed, arguments.steps) for seed in range(arguments.seeds)] for name, loss in losses.items()
    }
    found["LightGBM"] = [lightgbm_ranker(seed) for seed in range(arguments.seeds)]
    for name, values in found.items():
        numbers = torch.tensor(values)
        spread = numbers.std().item() if len(values) > 1 else 0.0
        print(f"{name:16s} {numbers.mean():.3f} ± {spread:.3f}", flush=True)


if __name__ == "__main__":
    main()
