"""The pictures of index.md, how-it-works.md and diagnose.md: `python docs/pictures.py` writes them anew."""

import json
import math
import statistics
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import newton_losses as nl
from ink import INK, RULE, SOFT, TONES, drawing, in_variables, save
from newton_losses.diagnose import diagnose

FOLDER = Path(__file__).parent / "pictures"


def saturating(y: Tensor) -> Tensor:
    """Flat far away, with a minimum at 0."""
    return 1 - torch.exp(-y.square() / 2).sum(1) + 0.02 * y.square().sum(1)


def one_output() -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    grid = torch.linspace(-3, 3, 301)[:, None]
    axes.plot(grid, saturating(grid), color=INK, label="loss")
    here = torch.tensor([[0.85]])
    for damping, colour in ((0.3, TONES[1]), (2.0, TONES[2])):
        found = nl.newton_target(saturating, here, damping=damping, curvature="hessian")
        curve = float(found.curvature.dense()) + damping
        moved = grid - here
        model = found.value + found.gradient * moved + curve / 2 * moved.square()
        axes.plot(grid, model, color=colour, linestyle="--", label=f"quadratic model, λ = {damping:g}")
        target = found.target
        height = found.value + found.gradient * (target - here) + curve / 2 * (target - here).square()
        axes.plot(target, height, "o", color=colour)
        axes.annotate("z*", (float(target), float(height)), (0, -14), textcoords="offset points", color=colour)
    axes.plot(here, saturating(here), "o", color=INK)
    axes.annotate("ȳ", (float(here), float(saturating(here))), (4, -12), textcoords="offset points")
    axes.set(xlabel="output y", ylabel="loss", ylim=(-0.6, 1.4))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right")
    save(
        figure, FOLDER / "one_output.svg", "The loss, its quadratic models and the targets of two dampings, one output"
    )


def valley(y: Tensor) -> Tensor:
    """Narrow across, wide along: a curvature of 20 against 1."""
    along, across = 0.9 * y[:, 0] + 0.44 * y[:, 1], -0.44 * y[:, 0] + 0.9 * y[:, 1]
    return along.square() / 2 + 20 * across.square() / 2


def two_outputs() -> None:
    figure = Figure(figsize=(7, 3.3), layout="constrained")
    axis = torch.linspace(-2.2, 2.2, 90)
    grid = torch.cartesian_prod(axis, axis)
    heights = valley(grid).reshape(90, 90).T
    points = torch.cartesian_prod(torch.linspace(-2, 2, 8), torch.linspace(-2, 2, 8))  # even: none at the minimum
    gradients = nl.expand(valley, points).gradient
    # One point per batch, so that each has its own curvature.
    newton = torch.cat(
        [nl.newton_target(valley, point[None], damping=nl.RelativeDamping(0.01), curvature="hessian").step
         for point in points]
    )  # fmt: skip
    panels = ((gradients, "gradients", TONES[2]), (newton, "Newton steps", TONES[1]))
    for axes, (directions, title, tone) in zip(figure.subplots(1, 2), panels, strict=True):
        axes.contour(axis, axis, heights, levels=[0.1, 0.5, 1.5, 4, 10, 20, 40], colors=SOFT, alpha=0.5, linewidths=0.8)
        unit = -torch.nn.functional.normalize(directions, dim=1)
        axes.quiver(*points.T, *unit.T, color=tone, angles="xy", width=0.006)
        axes.plot(0, 0, "o", color=INK)
        axes.set(title=title, aspect="equal", xlabel="output 1", ylabel="output 2", xticks=[], yticks=[])
        axes.spines[:].set_color(RULE)
    words = "Arrows on a narrow valley: gradients point across it, Newton steps point to its minimum"
    save(figure, FOLDER / "two_outputs.svg", words)


def rank_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    differences = scores[:, :, None] - scores[:, None, :]
    return (torch.sigmoid(10 * differences).sum(2) - 0.5 - wanted).square().sum(1)


def report() -> None:
    torch.manual_seed(0)  # the numbers of diagnose.md, whose report this is
    scores, wanted = torch.randn(100, 5), torch.rand(100, 5).argsort(1).float()
    found = diagnose(rank_loss, scores, wanted)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.svg"
        found.plot(file)
        words = "Three panels: eigenvalues of the curvatures, gradient norms, and the loss along directions"
        (FOLDER / "diagnose.svg").write_text(in_variables(file.read_text(), "diagnose", words))


def map_of_gains() -> None:
    """From the figures that `python benchmarks/map.py` has written."""
    found = json.loads((Path(__file__).parents[1] / "benchmarks" / "map.json").read_text())
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    names = {"clipped": "clipped", "sample": "sample", "fisher": "Fisher", "hessian": "Hessian"}
    for axes, (dial, values) in zip(panels, found.items(), strict=True):
        axes.axhline(1, color=RULE)
        for tone, (variant, name) in enumerate(names.items()):
            gains = [
                math.exp(statistics.mean(own["normalised"]) - statistics.mean(own[variant])) for own in values.values()
            ]
            axes.plot(range(len(gains)), gains, "o-", color=TONES[tone + 1], label=name, markersize=3)
        axes.set(xlabel=dial, yscale="log", xticks=range(len(values)), xticklabels=list(values))
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="gain over normalising")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    words = "The gain of clipping, sample, Fisher and Hessian over the normalised gradient, along five dials"
    save(figure, FOLDER / "map.svg", words)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with drawing():
        one_output()
        two_outputs()
        map_of_gains()
        report()
