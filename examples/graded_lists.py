"""Learning to rank lists of different lengths: MovieLens, 943 people who rated 20 to 737 movies each from 1 to 5.

    pip install newton-losses lightgbm
    pip install --no-deps recbole    # for its copy of the data, ml-100k
    python examples/graded_lists.py

A list holds the movies of one person, to be ranked for people whose ratings were never seen: by genre, year, and what
others gave. Lists are padded, and a mask says which movies exist. The measure is NDCG@10 over the held-out people.
"""

import argparse
import importlib.util
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightgbm import LGBMRanker
from torch import Tensor, nn

import newton_losses as nl
from newton_losses.sorting import ListNetLoss, NDCGLoss, ndcg, pad_lists


def read(ending: str) -> list[list[str]]:
    if (package := importlib.util.find_spec("recbole")) is None or package.origin is None:
        raise SystemExit("The ratings come with recbole, which is not installed: pip install --no-deps recbole")
    path = Path(package.origin).parent / "dataset_example" / "ml-100k" / f"ml-100k.{ending}"
    return [line.split("\t") for line in path.read_text().splitlines()[1:]]


def load(seed: int) -> tuple[tuple[Tensor, ...], ...]:
    """Features `(N, n, d)`, grades and mask of the training lists, and of those of held-out people."""
    person, movie, grade = np.array([row[:3] for row in read("inter")], dtype=int).T - 1
    movies = read("item")
    genres = sorted({name for row in movies for name in row[3].split()})
    about = np.array([[name in row[3].split() for name in genres] for row in movies], dtype=float)
    decade = np.array([[int(row[2]) / 10 - 199 if row[2].isdigit() else 0.0] for row in movies])
    held_out = np.random.default_rng(seed).random(person.max() + 1)[person] < 0.3
    features = np.hstack([about[movie], decade[movie], what_others_gave(movie, grade, ~held_out)])

    def lists(chosen: np.ndarray) -> tuple[Tensor, ...]:
        index, mask = pad_lists([torch.as_tensor(np.flatnonzero(person == one)) for one in np.unique(person[chosen])])
        return torch.as_tensor(features).float()[index], torch.as_tensor(grade)[index], mask

    return lists(~held_out), lists(held_out)


def what_others_gave(movie: np.ndarray, grade: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The mean of the known grades of each rating's movie and their number, without that rating itself."""
    count = np.bincount(movie[known], minlength=movie.max() + 1)[movie] - known
    total = np.bincount(movie[known], grade[known], minlength=movie.max() + 1)[movie] - known * grade
    return np.stack([(total + 5 * 2.5) / (count + 5) - 2.5, np.log1p(count) / 3 - 1], axis=1)


def train(loss: nn.Module, data: tuple[tuple[Tensor, ...], ...], seed: int, steps: int) -> float:
    (features, grades, mask), (test, test_grades, test_mask) = data
    torch.manual_seed(seed)
    loss = deepcopy(loss)  # a Newton loss keeps the size of the gradients it has seen
    model = nn.Sequential(nn.Linear(features.shape[-1], 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randperm(len(features))[:64]
        optimizer.zero_grad()
        loss(model(features[batch]), grades[batch], mask=mask[batch]).mean().backward()
        optimizer.step()
    return float(ndcg(model(test).detach(), test_grades, 10, mask=test_mask).mean())


def lightgbm_ranker(data: tuple[tuple[Tensor, ...], ...], seed: int, steps: int) -> float:
    (features, grades, mask), (test, test_grades, there) = data
    ranker = LGBMRanker(n_estimators=min(100, steps), random_state=seed, n_jobs=1, verbose=-1)
    ranker.fit(features[mask].numpy(), grades[mask].numpy(), group=mask.sum(-1).tolist())
    scores = torch.zeros(there.shape, dtype=torch.float64)
    scores[there] = torch.as_tensor(ranker.predict(test[there].numpy()))
    return float(ndcg(scores, test_grades, 10, mask=there).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    kinds = {"": lambda loss: loss, ", Fisher": nl.NewtonLoss, ", Hessian": partial(nl.NewtonLoss, curvature="hessian")}
    print(f"NDCG@10 of held-out people after {arguments.steps} steps, {arguments.seeds} splits")
    splits = [load(seed) for seed in range(arguments.seeds)]
    methods = {"LightGBM": lightgbm_ranker}
    for name, plain in (("NDCG", NDCGLoss("laplace")), ("ListNet", ListNetLoss())):
        for kind, make in kinds.items():
            methods[name + kind] = partial(train, make(plain))
    for name, method in methods.items():
        values = [method(data, seed, arguments.steps) for seed, data in enumerate(splits)]
        print(f"{name:16s} {np.mean(values):.4f} ± {np.std(values, ddof=min(1, len(values) - 1)):.4f}", flush=True)


if __name__ == "__main__":
    main()
