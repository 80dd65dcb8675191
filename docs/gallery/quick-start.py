# %% [markdown]
# # Quick start: your own ranking loss
#
# Wrap any loss in `nl.NewtonLoss` and train as before: here a network learns
# to read numbers from nothing but their order.
#
# Most of this notebook is an ordinary training loop. The one line that
# changes is `nl.NewtonLoss(rank_loss, "fisher")`.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import newton_losses as nl

# %% [markdown]
# ## The task
#
# Two of scikit-learn's handwritten digits side by side make a number from 0
# to 99. A sample is a list of five such numbers. The network never sees their
# values, only which is smallest, which comes next, and so on.

# %%
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
TRAINING = range(1400)
TEST = range(1400, len(images))


def draw_lists(part, count, generator):
    chosen = torch.randint(part.start, part.stop, (count, 5, 2), generator=generator)
    pictures = torch.cat(
        [images[chosen[..., 0]], images[chosen[..., 1]]], -1
    )  # two digits side by side
    values = 10 * labels[chosen[..., 0]] + labels[chosen[..., 1]]
    return pictures, values


# %% alt="Three lists of five two-digit numbers, handwritten"
pictures, values = draw_lists(TRAINING, 3, torch.Generator().manual_seed(0))
figure, axes = plt.subplots(3, 5, figsize=(7, 2.6), layout="constrained")
for row, shown, numbers in zip(axes, pictures, values, strict=True):
    for place, picture, rank in zip(row, shown, numbers.argsort().argsort(), strict=True):
        place.imshow(picture, cmap="gray")
        place.set_title(f"rank {rank}", size=9)
        place.axis("off")

# %% [markdown]
# ## The loss
#
# This is a loss anybody might write. The soft rank of an item counts, with a
# sigmoid, how many others lie below it; the loss is the squared distance to
# the wanted ranks. It returns one value per list. The sigmoids are steep, so
# most gradients vanish and a few are large.


# %%
def rank_loss(scores, wanted):
    differences = scores[:, :, None] - scores[:, None, :]
    ranks = torch.sigmoid(100 * differences).sum(2) - 0.5
    return (ranks - wanted).square().sum(1)


# %% [markdown]
# ## Training
#
# The loop takes any loss. Every 50 steps it measures the share of test items
# that get the right rank.

# %% short="STEPS, SEEDS = 4, 1"
STEPS, SEEDS = 800, 5


def train(loss, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        nn.Flatten(2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    test_pictures, test_values = draw_lists(TEST, 1000, torch.Generator().manual_seed(1))
    curve = []
    for step in range(STEPS + 1):
        if step % 50 == 0:
            with torch.no_grad():
                scores = network(test_pictures).squeeze(-1)
            curve.append(nl.sorting.element_wise_match(scores, test_values).mean().item())
        pictures, values = draw_lists(TRAINING, 64, generator)
        scores = network(pictures).squeeze(-1)
        optimizer.zero_grad()
        loss(scores, values.argsort(1).argsort(1)).mean().backward()
        optimizer.step()
    return network, curve


# %% [markdown]
# ## The comparison
#
# Three losses, five seeds each, everything else the same. Each run makes its
# own Newton loss, which keeps a running scale of the gradients it sees.
#
# - **plain**: the loss as it is;
# - **Newton**: the same loss with its curvature;
# - **normalised**: a damping so large that nothing is left of the curvature.
#   The gradient is only divided by its usual size in the run so far. What this
#   gains is not the curvature's.

# %%
losses = {
    "plain": lambda: rank_loss,
    "Newton": lambda: nl.NewtonLoss(rank_loss, "fisher"),
    "normalised": lambda: nl.NewtonLoss(rank_loss, "fisher", nl.RunningDamping(1000.0)),
}
runs = {name: [train(make(), seed) for seed in range(SEEDS)] for name, make in losses.items()}
curves = {name: torch.tensor([curve for _, curve in found]) for name, found in runs.items()}

print("share of ranks that are right on test lists, mean and range over seeds")
for name, found in curves.items():
    last = found[:, -1]
    print(f"{name:11s} {last.mean():.1%}   ({last.min():.1%} to {last.max():.1%})")

# %% alt="Share of right ranks over training steps for the plain, the Newton and the normalised loss"
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
steps = 50 * torch.arange(curves["plain"].shape[1])
for (name, found), colour in zip(curves.items(), ("C1", "C0", "0.5"), strict=True):
    axes.plot(steps, found.mean(0), color=colour, label=name)
    axes.fill_between(steps, found.amin(0), found.amax(0), color=colour, alpha=0.15, linewidth=0)
axes.set(xlabel="step", ylabel="ranks that are right")
axes.yaxis.set_major_formatter("{x:.0%}")
axes.legend(loc="lower right")
axes.set_title("mean and range over seeds", loc="left", size=10)

# %% [markdown]
# **What to take from it.** The Newton loss ends a little above the plain one,
# and so does the normalised gradient: the two are level. That is no accident.
# The items of a list are exchangeable, so the curvature has no direction to
# prefer, and normalising the batch is all that a Newton loss does here ([how
# it works](../how-it-works.md)). Where outputs differ in units or are coupled
# it does more, as [the next notebook](what-it-does.md) shows.
#
# ## What the network has learned
#
# Test lists, put in order by the network's scores. Values are shown in green
# where the rank is right.

# %% tags=["cover"] alt="Four test lists of five handwritten numbers, sorted by the trained network"
network, _ = runs["Newton"][0]
pictures, values = draw_lists(TEST, 4, torch.Generator().manual_seed(3))
with torch.no_grad():
    order = network(pictures).squeeze(-1).argsort(1)
figure, axes = plt.subplots(4, 5, figsize=(7, 3.6), layout="constrained")
for row, shown, numbers, ranked in zip(axes, pictures, values, order, strict=True):
    for place, item, wanted in zip(row, ranked, numbers.sort().values, strict=True):
        place.imshow(shown[item], cmap="gray")
        place.set_title(
            f"{numbers[item]:02d}", size=10, color="C2" if numbers[item] == wanted else "C3"
        )
        place.axis("off")

# %% [markdown]
# ## Your turn
#
# Replace `rank_loss` by your own. It takes outputs `(N, …)` and targets, and
# returns one value per sample or their mean. `print(nl.diagnose(your_loss,
# outputs, targets))` says what is wrong with it, if anything, and what a
# Newton loss would change; [another notebook](diagnosing.md) does that for a
# loss that will not train.
