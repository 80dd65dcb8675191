# %% [markdown]
# # Diagnosing a loss that will not train
#
# Ask `nl.diagnose` before you change anything: it tells a broken loss from a
# hard one, and says what a Newton loss would change.
#
# Three losses that train badly, for three different reasons. Only the last is
# a case to try a Newton loss on.

# %%
import re

import matplotlib.pyplot as plt
import torch
from torch import nn

import newton_losses as nl


def summary(report):
    """The verdict and its reasons; `print(report)` has what was measured, too."""
    return re.split("\nWhat a Newton loss|\nMeasured", str(report))[0]


# %% [markdown]
# ## 1. The loss mixes samples
#
# A cross-entropy with the softmax over the wrong dimension: each class is
# compared across the batch. Nothing raises an error, and the loss even falls.


# %%
def cross_entropy(logits, labels):
    log_probabilities = logits.log_softmax(0)  # should be dimension 1
    return -log_probabilities[torch.arange(len(labels)), labels]


generator = torch.Generator().manual_seed(0)
logits = torch.randn(64, 10, generator=generator)
labels = torch.randint(10, (64,), generator=generator)
print(summary(nl.diagnose(cross_entropy, logits, labels)))

# %% [markdown]
# ## 2. The gradient is rounding
#
# A sorting loss as it is usually written: a soft permutation matrix, then
# torch's own binary cross-entropy. At the first step, with scores close
# together, all is well. Later, when scores have spread, float32 has no digits
# left for probabilities near zero and one.


# %%
def sorting_loss(scores, values):
    distances = (scores.sort(-1).values[..., :, None] - scores[..., None, :]).abs()
    matrix = (-distances / 0.1).softmax(-1)
    wanted = torch.nn.functional.one_hot(values.argsort(-1), values.shape[-1]).to(matrix.dtype)
    return torch.nn.functional.binary_cross_entropy(matrix, wanted, reduction="none").mean((-2, -1))


values = torch.rand(100, 5, generator=generator)
close, far = (scale * torch.randn(100, 5, generator=generator) for scale in (0.1, 3.0))
print("scores close together\n", summary(nl.diagnose(sorting_loss, close, values)), "\n", sep="")
print("scores far apart\n", summary(nl.diagnose(sorting_loss, far, values)), sep="")

# %% [markdown]
# The loss itself is harmless there: computed from logarithms, as the library
# does, it has gradients of ordinary size.

# %% alt="Histogram of gradient norms: the usual loss reaches many orders of magnitude higher than the one in log space"
in_log_space = nl.sorting.SortingLoss("softsort", temperature=0.1)
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
bins = torch.logspace(-4, 8, 60)
for name, loss, colour in (("as usual", sorting_loss, "C1"), ("in log space", in_log_space, "C0")):
    norms = nl.expand(loss, far, values, curvature=None).gradient.norm(dim=1)
    axes.hist(norms.clamp(1e-4, 1e8), bins, color=colour, alpha=0.7, label=name)
axes.set(xscale="log", xlabel="length of a sample's gradient", ylabel="samples")
axes.legend()

# %%
print(summary(nl.diagnose(in_log_space, far, values)))

# %% [markdown]
# Fix such a loss; do not wrap it. A Newton loss would divide the explosions
# away, and hide that they are rounding.

# %% [markdown]
# ## 3. The loss is right, and hard
#
# A network predicts a mean and an uncertainty, and learns by the Gaussian
# likelihood. That is a common loss with a known weakness: where the predicted
# uncertainty is small, a mistake has an enormous gradient, and where it is
# large, hardly any.


# %%
def likelihood(outputs, target):  # outputs are a mean and a logarithm of the standard deviation
    mean, log_deviation = outputs.unbind(1)
    return log_deviation + ((target - mean) / log_deviation.exp()).square() / 2


def draw(count, generator):
    x = 6 * torch.rand(count, 1, generator=generator) - 3
    deviation = 0.02 + 0.3 * torch.sigmoid(4 * x[:, 0])  # precise on the left, noisy on the right
    return x, torch.sin(3 * x[:, 0]) + deviation * torch.randn(count, generator=generator)


x, target = draw(256, generator)
print(nl.diagnose(likelihood, torch.randn(256, 2, generator=generator), target))

# %% [markdown]
# No fault, and the report suggests the empirical Fisher. A suggestion is not
# a result, so we train it as it is, with gradients clipped at norm 1, and in
# two kinds of Newton loss. The default measures gradients by their usual size
# in recent batches; the other, "by batch", measures each batch on its own.
# Beside each stands its control, a gradient that is only normalised in the
# same unit, without the curvature. Each gets the best of three learning
# rates, by the mean over four seeds. The rates decay.

# %% short="STEPS, SEEDS, RATES = 2, 1, [1e-3]"
STEPS, SEEDS, RATES = 600, 4, [3e-3, 1e-2, 3e-2]


def train(loss, rate, clip, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, STEPS)
    for _ in range(STEPS):
        x, target = draw(64, generator)
        optimizer.zero_grad()
        loss(network(x), target).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return network


def test_loss(network):
    x, target = draw(4000, torch.Generator().manual_seed(999))
    with torch.no_grad():
        return likelihood(network(x), target).mean().item()


# %%
ways = {
    "plain": lambda: likelihood,
    "clipped": lambda: likelihood,
    "normalised": lambda: nl.NewtonLoss(likelihood, "fisher", nl.RunningDamping(1000.0)),
    "Newton": lambda: nl.NewtonLoss(likelihood, "fisher"),
    "normalised, by batch": lambda: nl.NewtonLoss(
        likelihood, "fisher", nl.NormalizedDamping(1000.0)
    ),
    "Newton, by batch": lambda: nl.NewtonLoss(likelihood, "fisher", nl.NormalizedDamping()),
}
print("test loss: mean over seeds (range) at the best learning rate")
best = {}
for name, make in ways.items():
    found = {}
    for rate in RATES:
        networks = [train(make(), rate, name == "clipped", seed) for seed in range(SEEDS)]
        found[rate] = (networks, torch.tensor([test_loss(network) for network in networks]))
    rate = min(found, key=lambda rate: found[rate][1].mean())
    best[name], losses = found[rate]
    low, high = losses.min(), losses.max()
    print(f"{name:20s} {losses.mean():.3f}  ({low:.3f} to {high:.3f})  at {rate:g}")

# %% tags=["cover"] alt="Predicted means with bands of two deviations, plain and Newton by batch, over data noisier to the right"
figure, panels = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained", sharey=True)
grid = torch.linspace(-3, 3, 300)[:, None]
x, target = draw(300, torch.Generator().manual_seed(7))
for panel, name, colour in zip(panels, ("plain", "Newton, by batch"), ("C1", "C0"), strict=True):
    with torch.no_grad():
        mean, log_deviation = best[name][0](grid).unbind(1)
    band = 2 * log_deviation.exp()
    panel.plot(x, target, ".", color="0.55", markersize=3)
    panel.plot(grid, mean, color=colour)
    panel.fill_between(grid[:, 0], mean - band, mean + band, color=colour, alpha=0.25, linewidth=0)
    panel.set(title=name, xlabel="input", ylim=(-2, 2))

# %% [markdown]
# **The suggestion was half right.** Measuring each batch on its own helps. The
# default does not: it divides by the usual size of gradients, so a batch in
# which they explode still counts for more than others. And the curvature adds
# nothing: each Newton loss is level with its control. The report had measured
# just that, gradients that grow with the error and a Fisher's direction that
# leads no further down. It speaks of chances; only training tells.
#
# ## What to remember
#
# - **"Fix the loss first"**: do so. No optimiser helps against a wrong
#   dimension or against rounding.
# - **"No fault found"**: train, beside clipping and beside a normalised
#   gradient (`nl.RunningDamping(1000)`). The report says how often a Newton loss
#   helped on problems that measure like yours, not that it will.
# - Diagnose at outputs early *and* late in training: the sorting loss above
#   was in order at first.
#
# `report.plot("report.png")` draws the measurements, and [diagnosing a
# loss](../diagnose.md) explains each of them.
