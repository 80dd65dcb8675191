# %% [markdown]
# # Learning costs from paths on terrain
#
# A network looks at maps and sees which way others went. From the paths alone
# it learns what each kind of ground costs.
#
# There is no derivative to follow: a shortest path jumps when costs change. A
# perturbed solver gives a loss that can be trained all the same, and it needs
# nothing from the solver but its answers.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import newton_losses as nl
from newton_losses_bench.data import terrain

# %% [markdown]
# ## The maps
#
# A generator draws maps of 12×12 cells with five kinds of ground. The label
# of a map is its cheapest path from the top left to the bottom right. The
# costs themselves are hidden from the network; we look at them only to check.

# %% short="TRAINING, TEST, STEPS, SEEDS = 8, 8, 2, 1"
TRAINING, TEST, STEPS, SEEDS = 800, 200, 300, 5

# %%
train_maps, _, train_paths = terrain.draw(TRAINING, split="train")
test_maps, test_costs, test_paths = terrain.draw(TEST, split="test")


def pixels_of_cells(maps):  # (maps, 96, 96, 3) to (maps, 12, 12, 192), standardised
    pixels = (maps - train_maps.mean((0, 1, 2))) / train_maps.std((0, 1, 2))
    return torch.tensor(pixels).float().reshape(-1, 12, 8, 12, 8, 3).transpose(2, 3).flatten(3)


cells, wanted = pixels_of_cells(train_maps), torch.tensor(train_paths).float()
test_cells, test_wanted = pixels_of_cells(test_maps), torch.tensor(test_paths).float()


def draw_path(axes, path, colour, dotted=False):
    """A line through the cells of a path, which is a mask of 12×12."""
    left, way = np.argwhere(np.asarray(path)).tolist(), [[0, 0]]
    left.remove(way[0])
    while left:  # on to the nearest cell that is left
        row, column = way[-1]
        way.append(min(left, key=lambda cell: max(abs(cell[0] - row), abs(cell[1] - column))))
        left.remove(way[-1])
    rows, columns = 8 * np.array(way).T + 3.5  # a cell has 8×8 pixels
    if not dotted:
        axes.plot(columns, rows, color="black", linewidth=3.5)
    axes.plot(columns, rows, ":" if dotted else "-", color=colour, linewidth=2)
    axes.axis("off")


# %% alt="Four generated maps with their cheapest paths as yellow lines"
figure, panels = plt.subplots(1, 4, figsize=(7.5, 2), layout="constrained")
for panel, picture, path in zip(panels, train_maps, train_paths, strict=False):
    panel.imshow(picture)
    draw_path(panel, path, "yellow")

# %% [markdown]
# ## Network and loss
#
# The network gives each cell a positive cost, from the cell's 8×8 pixels
# alone. The Fenchel-Young loss adds noise to these costs, solves for the
# cheapest path a few times, and compares the mean of the solutions with the
# wanted path. Where the solver goes and should not, costs rise; where it
# should go and does not, they fall.


# %%
def make_network():
    return nn.Sequential(
        nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus(), nn.Flatten(2)
    )


def make_loss(seed):
    generator = torch.Generator().manual_seed(seed)
    return nl.perturbed.FenchelYoungLoss(
        nl.paths.shortest_path, scale=0.1, num_samples=3, generator=generator
    )


# %% [markdown]
# ## Training
#
# Every 25 steps we count the test maps whose path is found exactly. The loop
# also keeps the costs predicted for the test maps, to show later how they
# emerge. The learning rate was chosen for the plain loss.


# %%
def train(newton, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    loss = newton(make_loss(seed))
    learned = {}  # costs of the test maps by step
    for step in range(STEPS + 1):
        if step % 25 == 0:
            with torch.no_grad():
                learned[step] = network(test_cells)
        batch = torch.randint(len(cells), (32,), generator=generator)
        optimizer.zero_grad()
        loss(network(cells[batch]), wanted[batch]).mean().backward()
        optimizer.step()
    return learned


def share_right(costs):
    return (nl.paths.shortest_path(costs) == test_wanted).flatten(1).all(1).float().mean()


# %% [markdown]
# The loss is trained as it is, as a Newton loss, and with a gradient that is
# only normalised, the control.

# %%
kinds = {
    "plain": lambda loss: loss,
    "Newton": lambda loss: nl.NewtonLoss(loss, "fisher"),
    "normalised": lambda loss: nl.NewtonLoss(loss, "fisher", nl.RunningDamping(1000.0)),
}
runs = {name: [train(kind, seed) for seed in range(SEEDS)] for name, kind in kinds.items()}
curves = {
    name: torch.tensor([[share_right(costs) for costs in learned.values()] for learned in found])
    for name, found in runs.items()
}

print(f"cheapest paths found exactly on {TEST} test maps, mean and range over seeds")
for name, found in curves.items():
    last = found[:, -1]
    print(f"{name:11s} {last.mean():.1%}   ({last.min():.1%} to {last.max():.1%})")

# %% alt="Share of exact paths over steps for the plain, the Newton and the normalised loss"
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
steps = list(runs["plain"][0])
for (name, found), colour in zip(curves.items(), ("C1", "C0", "0.5"), strict=True):
    axes.plot(steps, found.mean(0), color=colour, label=name)
    axes.fill_between(steps, found.amin(0), found.amax(0), color=colour, alpha=0.15, linewidth=0)
axes.set(xlabel="step", ylabel="paths found exactly")
axes.yaxis.set_major_formatter("{x:.0%}")
axes.set_title("mean and range over seeds", loc="left", size=10)
axes.legend(loc="lower right")

# %% [markdown]
# **The three are level.** The Fenchel-Young loss is convex in the costs, and
# its gradients are bounded, since each is a difference of two paths. There is
# little for the curvature to repair.
#
# ## Paths as they improve
#
# The same test map over the course of training: on top the learned costs,
# below the path they lead to (yellow) and the wanted one (white, dotted). On
# the right what was hidden.

# %% tags=["cover"] alt="Learned costs of a map and the path they lead to at four moments of training, beside the truth"
learned = runs["Newton"][0]
number = test_paths.sum((1, 2)).argmax()  # the map with the longest detour
moments = [*steps[:2], steps[len(steps) // 2], steps[-1]]
figure, panels = plt.subplots(2, 5, figsize=(7.5, 3.4), layout="constrained")
for column, step in zip(panels.T, moments, strict=False):
    costs = learned[step][number]
    column[0].imshow(costs, cmap="magma")
    column[0].set_title(f"step {step}", size=11)
    column[1].imshow(test_maps[number])
    draw_path(column[1], nl.paths.shortest_path(costs), "yellow")
panels[0, 4].imshow(test_costs[number].astype(float), cmap="magma")
panels[0, 4].set_title("truth", size=11)
panels[1, 4].imshow(test_maps[number])
for panel in panels[1]:
    draw_path(panel, test_paths[number], "white", dotted=True)
for panel in panels.flat:
    panel.axis("off")

# %% [markdown]
# ## Did it learn the costs?
#
# Nobody told the network what a cell costs. A box shows the middle half of
# all cells of one kind of ground on the test maps, and their median.

# %% alt="Learned cost over hidden cost: cheap ground gets low costs, expensive ground high ones"
hidden = test_costs.astype(float)
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
kinds_of_ground = np.unique(hidden)
costs = learned[steps[-1]].numpy()
axes.boxplot(
    [costs[hidden == cost] for cost in kinds_of_ground],
    showfliers=False,
    medianprops={"color": "C0"},
)
axes.set_xticks(
    range(1, 6),
    [f"{name}\n{cost:.1f}" for name, cost in zip(terrain.NAMES, terrain.COSTS, strict=True)],
)
axes.set(xlabel="kind of ground and its hidden cost", ylabel="learned cost")
for name, cost in zip(terrain.NAMES, kinds_of_ground, strict=True):
    median = np.median(costs[hidden == cost])
    print(f"{name:8s} hidden {cost:.1f}   learned {median:.2f} (median)")

# %% [markdown]
# The cheap grounds get low costs and those to avoid high ones. The scale is
# free, since doubling all costs changes no path; and ground that is never
# worth crossing needs no exact price.
#
# `newton-losses train paths` trains the paper's larger network on such maps,
# and [shortest paths](../paths/shortest-path.md) describes the solver. With
# `pip install numba` it is many times faster.
