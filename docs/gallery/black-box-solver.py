# %% [markdown]
# # A black-box solver
#
# Train a network through a solver that has no derivative and is not ours:
# scipy matches taxis with passengers, and the network learns travel times
# from the matchings alone.
#
# All we ask of the solver is that it can be called. Noise makes its answers
# differentiable. How much is learned depends on the loss that is built around
# it, far more than on the curvature.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

import newton_losses as nl

# %% [markdown]
# ## The task
#
# Six taxis and six passengers stand somewhere in a city. A dispatcher sends
# each taxi to one passenger, such that the sum of travel times is least. The
# travel times are hidden: roads are slow from east to west, and a river in
# the middle has to be crossed by ferry. We see where everybody stands, and
# who was sent to whom.


# %%
def hidden_times(taxis, passengers):  # positions (..., 2) in a square, x first
    apart = (taxis - passengers).abs()
    crosses = (taxis[..., 0] < 0.5) != (passengers[..., 0] < 0.5)
    return 2 * apart[..., 0] + apart[..., 1] + 0.5 * crosses


def cheapest_matching(times):  # the solver: (B, 6, 6) times in, (B, 6, 6) of 0 and 1 out
    matching = torch.zeros_like(times)
    for time, match in zip(times.numpy(), matching, strict=True):
        match[linear_sum_assignment(time)] = 1
    return matching


def draw_scenes(count, generator):
    taxis = torch.rand(count, 6, 1, 2, generator=generator).expand(-1, -1, 6, -1)
    passengers = torch.rand(count, 1, 6, 2, generator=generator).expand(-1, 6, -1, -1)
    matching = cheapest_matching(hidden_times(taxis, passengers))
    return torch.cat([taxis, passengers], -1), matching  # (count, 6, 6, 4) and (count, 6, 6)


# %% alt="Three city maps with six taxis and six passengers each, joined by lines; few lines cross the river"
def show_matching(axes, pairs, matching, colour):
    for taxi, passenger in np.argwhere(np.asarray(matching)):
        x1, y1, x2, y2 = pairs[taxi, passenger]
        axes.plot([x1, x2], [y1, y2], color=colour, linewidth=1.5)
    axes.plot(*pairs[:, 0, :2].T, "s", color="C1", markersize=6)
    axes.plot(*pairs[0, :, 2:].T, "o", color="C2", markersize=6)
    axes.axvline(0.5, color="C0", linewidth=6, alpha=0.25)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xticks=[], yticks=[])


pairs, matchings = draw_scenes(3, torch.Generator().manual_seed(4))
figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.6), layout="constrained")
for panel, scene, matching in zip(panels, pairs, matchings, strict=True):
    show_matching(panel, scene, matching, "0.5")
panels[1].set_title("taxis (squares), passengers (circles) and the river", size=10)

# %% [markdown]
# ## The loss
#
# Count the taxis that are sent to the wrong passenger. As a function of the
# predicted times this is a staircase: flat, with jumps. `SmoothedLoss`
# averages it over noisy times, which has a slope everywhere, and estimates
# that slope from a few calls of the solver.


# %%
def wrong_taxis(times, wanted):
    return (cheapest_matching(times) != wanted).sum((1, 2)) / 2


# %% alt="The number of wrong taxis along a line of times: a staircase, and its smoothed average as a curve"
pairs, wanted = draw_scenes(1, torch.Generator().manual_seed(5))
times = hidden_times(pairs[..., :2], pairs[..., 2:])
direction = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(6))
along = torch.linspace(-1, 1, 121)
line = times + along[:, None, None] * direction
smooth = nl.smoothing.SmoothedLoss(
    wrong_taxis, 0.1, 300, generator=torch.Generator().manual_seed(0)
)
figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
axes.plot(along, wrong_taxis(line, wanted.expand(121, -1, -1)), color="C1", label="as it is")
axes.plot(along, smooth(line, wanted.expand(121, -1, -1)), color="C0", label="smoothed")
axes.set(xlabel="times moved along a random direction", ylabel="wrong taxis")
axes.legend()

# %% [markdown]
# ## Training
#
# A small network maps the four coordinates of a pair to a time. Each step
# draws 32 scenes and calls the solver ten times per scene. The learning rate
# is the best of three for the smoothed loss as it is, on a seed not used
# below.

# %% short="STEPS, SEEDS, TEST = 2, 1, 20"
STEPS, SEEDS, TEST = 300, 5, 500


def train(make_loss, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(2)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    loss = make_loss(generator)
    test_pairs, test_wanted = draw_scenes(TEST, torch.Generator().manual_seed(1000))
    curve = []
    for step in range(STEPS + 1):
        if step % 30 == 0:
            with torch.no_grad():
                found = cheapest_matching(network(test_pairs))
            curve.append((found == test_wanted).flatten(1).all(1).float().mean().item())
        pairs, wanted = draw_scenes(32, generator)
        optimizer.zero_grad()
        loss(network(pairs), wanted).mean().backward()
        optimizer.step()
    return network, curve


# %% [markdown]
# Four ways, five seeds each. The last needs a solver of a *linear* problem,
# as matchings and paths are: the Fenchel-Young loss compares solutions
# instead of counting errors.


# %%
def smoothed(generator):
    return nl.smoothing.SmoothedLoss(wrong_taxis, scale=0.1, num_samples=10, generator=generator)


def fenchel_young(generator):
    return nl.perturbed.FenchelYoungLoss(
        cheapest_matching, scale=0.1, num_samples=10, generator=generator
    )


kinds = {
    "smoothed": smoothed,
    "smoothed, Newton": lambda generator: nl.NewtonLoss(smoothed(generator), "fisher"),
    "smoothed, normalised": lambda generator: nl.NewtonLoss(
        smoothed(generator), "fisher", nl.RunningDamping(1000.0)
    ),
    "Fenchel-Young": fenchel_young,
}
runs = {name: [train(kind, seed) for seed in range(SEEDS)] for name, kind in kinds.items()}
curves = {name: torch.tensor([curve for _, curve in found]) for name, found in runs.items()}

print(f"scenes with all taxis right, of {TEST}; mean and range over seeds")
for name, found in curves.items():
    last = found[:, -1]
    print(f"{name:21s} {last.mean():.1%}   ({last.min():.1%} to {last.max():.1%})")

# %% alt="Share of scenes with all taxis right over training steps, for the four losses"
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
steps = 30 * torch.arange(curves["smoothed"].shape[1])
for (name, found), colour in zip(curves.items(), ("C1", "C0", "0.5", "C2"), strict=True):
    axes.plot(steps, found.mean(0), color=colour, label=name)
    axes.fill_between(steps, found.amin(0), found.amax(0), color=colour, alpha=0.12, linewidth=0)
axes.set(xlabel="step", ylabel="scenes all right")
axes.yaxis.set_major_formatter("{x:.0%}")
axes.set_title("mean and range over seeds", loc="left", size=10)
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))

# %% [markdown]
# **The loss decides, not the curvature.** The Fenchel-Young loss learns far
# more from as many calls of the solver: it sees *which* pairs were wrong,
# where the smoothed loss sees only how many. As a Newton loss the smoothed
# one gains nothing that would stand out from the seeds. So: if your solver
# minimises a linear cost, use `FenchelYoungLoss`; if it is a black box of any
# other kind, `SmoothedLoss` works for whatever can be called. (On the
# benchmark's maps and larger network, smoothed losses did gain from the
# Fisher: see [the evidence](../evidence.md).)
#
# ## What the network has learned
#
# How much longer does one taxi (left square) take to each place than the
# other (right square)? Nobody told the network about slow roads or a river.
# We look at a difference with its mean removed, because a constant for a taxi
# or for a place changes no matching, and neither does the scale.

# %% tags=["cover"] alt="Maps of two taxis' difference in travel time, hidden and learned, with a jump at the river"
axis = torch.linspace(0, 1, 60)
places = torch.cartesian_prod(axis, axis)
left, right = (torch.tensor(place).expand_as(places) for place in ([0.2, 0.5], [0.8, 0.5]))


def learned_times(taxi):
    with torch.no_grad():
        return network(torch.cat([taxi, places], -1)[None, None]).flatten()


shown = {"hidden": hidden_times(left, places) - hidden_times(right, places)}
for name in ("smoothed", "smoothed, Newton", "Fenchel-Young"):
    network, _ = runs[name][0]
    shown[name] = learned_times(left) - learned_times(right)
figure, panels = plt.subplots(1, 4, figsize=(7.5, 2.2), layout="constrained")
for panel, (name, difference) in zip(panels, shown.items(), strict=True):
    map_of_city = (difference - difference.mean()).reshape(60, 60).T
    panel.imshow(map_of_city, cmap="PuOr", origin="lower", extent=(0, 1, 0, 1))
    panel.plot([0.2, 0.8], [0.5, 0.5], "s", color="black", markersize=6, markerfacecolor="white")
    panel.set_title(name, size=10)
    panel.axis("off")
