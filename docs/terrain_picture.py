"""Draws docs/terrain.webp: look-alike maps, the costs of their vertices, and their shortest paths.

Run it from anywhere: python docs/terrain_picture.py
"""

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from PIL import Image

from newton_losses_bench.data import terrain

SEED = 11
GREY = "#808891"
COLUMNS = (0, 1, 2, 3)
COLOURS = ListedColormap(["#e9f2d0", "#f3c98b", "#6aa56e", "#4a7fb5", "#7d7a85"])


def show_path(axes, path, scale=8, colour="#fff34d"):
    """A line through the vertices of a mask, in the order of the way; vertices lie at 8i + 4."""
    place, way = (0, 0), [(0, 0)]
    left = {tuple(vertex) for vertex in np.argwhere(path)} - {place}
    while left:
        # The next vertex is the only neighbour left: two others side by side would be a shorter way.
        place = min(left, key=lambda vertex: max(abs(vertex[0] - place[0]), abs(vertex[1] - place[1])))
        left.remove(place)
        way.append(place)
    rows, columns = (np.array(way).T + 0.5) * scale - 0.5
    axes.plot(columns, rows, color="black", linewidth=3.4, solid_capstyle="round", solid_joinstyle="round")
    axes.plot(columns, rows, color=colour, linewidth=1.8, solid_capstyle="round", solid_joinstyle="round")
    axes.plot(columns[[0, -1]], rows[[0, -1]], "o", color=colour, markeredgecolor="black", markersize=5)


def main():
    maps, weights, paths = terrain.draw(max(COLUMNS) + 1, size=12, seed=SEED)
    large = terrain.draw(1, size=30, seed=SEED)
    # Grey letters on transparent paper can be read on light and dark pages.
    grey = {"text.color": GREY, "axes.labelcolor": GREY, "axes.titlecolor": GREY, "xtick.color": GREY}
    plt.rcParams.update(grey)
    figure = plt.figure(figsize=(10.8, 5.4), layout="constrained")
    grid = figure.add_gridspec(3, 7, width_ratios=[1, 1, 1, 1, 0.02, 1.45, 1.45])
    kinds = np.searchsorted(np.array([1, 5, 7, 9]), weights.astype(np.float64))
    norm = BoundaryNorm(np.arange(6) - 0.5, 5)
    for column, index in enumerate(COLUMNS):
        axes = [figure.add_subplot(grid[row, column]) for row in range(3)]
        axes[0].imshow(maps[index], interpolation="nearest")
        costs = axes[1].imshow(kinds[index], cmap=COLOURS, norm=norm)
        axes[2].imshow(maps[index], interpolation="nearest")
        show_path(axes[2], paths[index])
        if column == 0:
            for ax, label in zip(axes, ("map", "vertex costs", "shortest path"), strict=True):
                ax.set_ylabel(label)
        for ax in axes:
            ax.set(xticks=[], yticks=[])
    big = figure.add_subplot(grid[:, 5:])
    big.imshow(large.maps[0], interpolation="nearest")
    show_path(big, large.paths[0])
    big.set(xticks=[], yticks=[], title="30×30 vertices")
    bar = figure.colorbar(costs, ax=big, location="bottom", ticks=range(5), shrink=0.85, pad=0.02)
    names = [f"{name}\n{cost:.1f}" for name, cost in zip(terrain.NAMES, terrain.COSTS, strict=True)]
    bar.ax.set_xticklabels(names)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=64, transparent=True)
    Image.open(drawn).convert("RGBA").save(Path(__file__).with_name("terrain.webp"), quality=20, method=6)


if __name__ == "__main__":
    main()
