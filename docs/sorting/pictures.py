"""Draws the pictures of this folder: `python docs/sorting/pictures.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from newton_losses.sorting import NeuralSort, Relaxation, SoftSort, SortingNetwork

SCORES = torch.tensor([0.2, 1.5, -0.7, 0.4, 2.3, -1.6])


def draw(name: str, panels: list[tuple[str, Relaxation]]) -> None:
    """One matrix a panel, in the ink of its weights, on one scale from 0 to 1."""
    figure, axes = plt.subplots(1, len(panels), figsize=(1.7 * len(panels), 2.1), layout="constrained")
    for axis, (title, relaxation) in zip(axes, panels, strict=True):
        axis.imshow(relaxation.matrix(SCORES), cmap="Blues", vmin=0, vmax=1)
        axis.set_title(title, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_xlabel("item", fontsize=8)
    axes[0].set_ylabel("rank", fontsize=8)
    figure.savefig(Path(__file__).parent / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    temperatures = (10.0, 3.0, 1.0, 0.3, 0.1)
    draw("neuralsort", [(f"temperature {t:g}", NeuralSort(t)) for t in temperatures])
    draw("softsort", [(f"temperature {t:g}", SoftSort(t)) for t in temperatures])
    steepness = (0.3, 1.0, 3.0, 10.0, 100.0)
    draw("sorting-networks", [(f"steepness {b:g}", SortingNetwork(6, steepness=b)) for b in steepness])
    laws = ("logistic", "logistic_phi", "gaussian", "cauchy", "reciprocal", "optimal")
    draw("distributions", [(law, SortingNetwork(6, "odd_even", law, 3.0)) for law in laws])


if __name__ == "__main__":
    main()
