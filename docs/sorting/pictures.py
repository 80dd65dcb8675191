"""Draws the pictures of this folder: `python docs/sorting/pictures.py`."""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from newton_losses.sorting import NeuralSort, Relaxation, SoftSort, SortingNetwork

sys.path.insert(0, str(Path(__file__).parents[1]))
from ink import RULE, TONES, drawing, save

SCORES = torch.tensor([0.2, 1.5, -0.7, 0.4, 2.3, -1.6])


def draw(name: str, words: str, panels: list[tuple[str, Relaxation]]) -> None:
    """One matrix per panel, in the ink of its weights, on one scale from 0 to 1."""
    figure = Figure(figsize=(1.5 * len(panels), 1.9), layout="constrained")
    axes = figure.subplots(1, len(panels))
    size = len(SCORES)
    for axis, (title, relaxation) in zip(axes, panels, strict=True):
        for rank, row in enumerate(relaxation.matrix(SCORES).tolist()):
            for item, weight in enumerate(row):
                if weight >= 0.004:
                    axis.add_patch(Rectangle((item, rank), 1, 1, facecolor=TONES[1], alpha=weight, linewidth=0))
        axis.set(xlim=(0, size), ylim=(size, 0), aspect="equal", xticks=[], yticks=[])
        axis.spines[:].set_color(RULE)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("item", fontsize=8)
    axes[0].set_ylabel("rank", fontsize=8)
    save(figure, Path(__file__).parent / f"{name}.svg", words)


def main() -> None:
    temperatures = (10.0, 3.0, 1.0, 0.3, 0.1)
    falling = "The matrix of six scores as the temperature falls"
    draw("neuralsort", falling, [(f"temperature {t:g}", NeuralSort(t)) for t in temperatures])
    draw("softsort", falling, [(f"temperature {t:g}", SoftSort(t)) for t in temperatures])
    steepness = (0.3, 1.0, 3.0, 10.0, 100.0)
    draw(
        "sorting-networks",
        "The matrix of six scores as the steepness grows",
        [(f"steepness {b:g}", SortingNetwork(6, steepness=b)) for b in steepness],
    )
    laws = ("logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal")
    draw(
        "distributions",
        "The six distributions at steepness 3",
        [(law, SortingNetwork(6, "odd_even", law, 3.0)) for law in laws],
    )


if __name__ == "__main__":
    with drawing():
        main()
