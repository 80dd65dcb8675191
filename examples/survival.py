"""Survival with censoring, as an order of which only a part is known: the German breast cancer study, 686 patients.

    pip install newton-losses scikit-survival
    python examples/survival.py

Who was lost to follow-up may have had any later time: each patient of a list has a lowest and a highest rank. The loss
is −log of the probability of these ranks (`PartialOrderLoss`), as it is and as a Newton loss; the measure is Harrell's
concordance index over splits, beside Cox's proportional hazards from scikit-survival. The set comes with that package,
and none of its columns was known only after the outcome.
"""

import argparse
from copy import deepcopy

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sksurv.datasets import load_gbsg2
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.metrics import concordance_index_censored
from torch import nn

import newton_losses as nl
from newton_losses.sorting import PartialOrderLoss, survival_ranks

LIST = 16


def load(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Standardised features and outcomes of training and test patients."""
    table, outcome = load_gbsg2()
    table = table.assign(
        horTh=table["horTh"] == "yes",
        menostat=table["menostat"] == "Post",
        tgrade=table["tgrade"].map({"I": 1, "II": 2, "III": 3}).astype(float),
        pnodes=np.log(table["pnodes"]),
        progrec=np.log1p(table["progrec"]),
        estrec=np.log1p(table["estrec"]),
    )
    train, test, known, held_out = train_test_split(table.to_numpy(float), outcome, test_size=0.3, random_state=seed)
    mean, deviation = train.mean(0), train.std(0)
    return (train - mean) / deviation, (test - mean) / deviation, known, held_out


def concordance(risk: np.ndarray, outcome: np.ndarray) -> float:
    return float(concordance_index_censored(outcome["cens"], outcome["time"], risk)[0])


def cox(seed: int) -> float:
    train, test, known, held_out = load(seed)
    return concordance(CoxPHSurvivalAnalysis(alpha=1e-3).fit(train, known).predict(test), held_out)


def learn(loss: nn.Module, seed: int, steps: int) -> float:
    loss = deepcopy(loss)  # a Newton loss keeps the size of the gradients it has seen
    train, test, known, held_out = load(seed)
    features, time = torch.as_tensor(train, dtype=torch.float32), torch.as_tensor(known["time"].copy())
    event = torch.as_tensor(known["cens"].copy())
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(features.shape[1], 1), nn.Flatten(-2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        lists = torch.randint(len(features), (32, LIST), generator=generator)
        lowest, highest = survival_ranks(time[lists], event[lists])
        optimizer.zero_grad()
        loss(model(features[lists]), lowest, highest).mean().backward()
        optimizer.step()
    with torch.no_grad():
        return concordance(model(torch.as_tensor(test, dtype=torch.float32)).numpy(), held_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    # The highest risk comes first.
    partial = PartialOrderLoss("softsort", temperature=1.0, descending=True)
    losses = {
        "as it is": partial,
        "Hessian": nl.NewtonLoss(partial, "hessian"),
        "Fisher": nl.NewtonLoss(partial, "fisher"),
    }
    print(f"Concordance of 206 test patients after {arguments.steps} steps, {arguments.seeds} splits")
    found = {
        name: [learn(loss, seed, arguments.steps) for seed in range(arguments.seeds)] for name, loss in losses.items()
    }
    found["Cox"] = [cox(seed) for seed in range(arguments.seeds)]
    for name, values in found.items():
        numbers = torch.tensor(values)
        spread = numbers.std().item() if len(values) > 1 else 0.0
        print(f"{name:9s} {numbers.mean():.3f} ± {spread:.3f}", flush=True)


if __name__ == "__main__":
    main()
