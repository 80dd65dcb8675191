"""The pictures of how-it-works.md and diagnose.md: `python docs/pictures.py` writes them anew."""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import newton_losses as nl
from newton_losses.diagnose import diagnose

FOLDER = Path(__file__).parent / "pictures"


def saturating(y: Tensor) -> Tensor:
    """Flat far away, with a minimum at 0."""
    return 1 - torch.exp(-y.square() / 2).sum(1) + 0.02 * y.square().sum(1)


def one_output() -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    grid = torch.linspace(-3, 3, 301)[:, None]
    axes.plot(grid, saturating(grid), color="black", label="loss")
    here = torch.tensor([[0.85]])
    for damping, colour in ((0.3, "tab:blue"), (2.0, "tab:orange")):
        found = nl.newton_target(saturating, here, damping=damping)
        curve = float(found.curvature.dense()) + damping
        moved = grid - here
        model = found.value + found.gradient * moved + curve / 2 * moved.square()
        axes.plot(grid, model, color=colour, linestyle="--", label=f"quadratic model, λ = {damping:g}")
        target = found.target
        height = found.value + found.gradient * (target - here) + curve / 2 * (target - here).square()
        axes.plot(target, height, "o", color=colour)
        axes.annotate("z*", (float(target), float(height)), (0, -14), textcoords="offset points", color=colour)
    axes.plot(here, saturating(here), "o", color="black")
    axes.annotate("ȳ", (float(here), float(saturating(here))), (4, -12), textcoords="offset points")
    axes.set(xlabel="output y", ylabel="loss", ylim=(-0.6, 1.4))
    axes.legend(loc="lower right")
    figure.savefig(FOLDER / "one_output.png", dpi=110)


def valley(y: Tensor) -> Tensor:
    """Narrow across, wide along: a curvature of 20 against 1."""
    along, across = 0.9 * y[:, 0] + 0.44 * y[:, 1], -0.44 * y[:, 0] + 0.9 * y[:, 1]
    return along.square() / 2 + 20 * across.square() / 2


def two_outputs() -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    axis = torch.linspace(-2.2, 2.2, 200)
    grid = torch.cartesian_prod(axis, axis)
    heights = valley(grid).reshape(200, 200).T
    points = torch.cartesian_prod(torch.linspace(-2, 2, 8), torch.linspace(-2, 2, 8))  # even: none at the minimum
    gradients = nl.expand(valley, points).gradient
    # One point per batch, so that each has its own curvature.
    newton = torch.cat(
        [nl.newton_target(valley, point[None], damping=nl.RelativeDamping(0.01)).step
         for point in points]
    )  # fmt: skip
    for axes, directions, title in zip(
        figure.subplots(1, 2), (gradients, newton), ("gradients", "Newton steps"), strict=True
    ):
        axes.contour(axis, axis, heights, levels=[0.1, 0.5, 1.5, 4, 10, 20, 40], colors="0.75", linewidths=0.8)
        unit = -torch.nn.functional.normalize(directions, dim=1)
        axes.quiver(*points.T, *unit.T, color="tab:blue", angles="xy", width=0.005)
        axes.plot(0, 0, "o", color="black")
        axes.set(title=f"{title}, directions only", aspect="equal", xlabel="output 1", ylabel="output 2")
    figure.savefig(FOLDER / "two_outputs.png", dpi=110)


def steep_ranks(scores: Tensor, wanted: Tensor) -> Tensor:
    differences = scores[:, :, None] - scores[:, None, :]
    return (torch.sigmoid(10 * differences).sum(2) - 0.5 - wanted).square().sum(1)


def report() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = torch.rand(100, 5, generator=generator).argsort(1).float()
    diagnose(steep_ranks, torch.randn(100, 5, generator=generator), wanted).plot(FOLDER / "diagnose.png")


def with_a_palette(path: Path) -> None:
    """Lines and letters need few colours: a third of the bytes, in the repository and in the source distribution."""
    small = Image.open(path).convert("RGB").quantize(colors=64, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    one_output()
    two_outputs()
    report()
    for picture in FOLDER.glob("*.png"):
        with_a_palette(picture)
