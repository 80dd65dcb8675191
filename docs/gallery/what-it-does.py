# %% [markdown]
# # What a Newton loss does to a gradient
#
# It normalises the batch, it clips samples softly, and it turns directions:
# three effects, one picture each.
#
# A Newton loss keeps the value of your loss and replaces the gradient of each
# sample by a step (C + λI)⁻¹ gᵢ. C is one curvature matrix for the batch, as
# wide as one sample's outputs, and λ is the damping. Which of the three
# effects you get depends on your loss.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import newton_losses as nl

# %% [markdown]
# ## 1. It normalises the batch
#
# Multiply a loss by a constant and its gradient grows as much. The Newton
# gradient stays the same: it is measured in units of the batch's own
# gradients.


# %%
def gradient_size(loss, y):
    y = y.clone().requires_grad_()
    loss(y).backward()
    return y.grad.norm().item()


def quartic(y):
    return (y - 1).pow(4).sum(1)


y = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
factors = torch.logspace(-4, 4, 17)
plain = [
    gradient_size(lambda y, factor=factor: (factor * quartic(y)).mean(), y) for factor in factors
]
newton = [
    gradient_size(nl.NewtonLoss(lambda y, factor=factor: factor * quartic(y), "fisher"), y)
    for factor in factors
]

# %% alt="Gradient size over the factor of the loss: a rising line for the plain loss, a flat one for the Newton loss"
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.loglog(factors, plain, "o-", color="C1", markersize=4, label="plain")
axes.loglog(factors, newton, "o-", color="C0", markersize=4, label="Newton")
axes.set(xlabel="the loss is multiplied by", ylabel="size of the gradient")
axes.legend()

# %% [markdown]
# For the scores of a list this is all there is. Its items are exchangeable,
# so no direction of C differs from the others, and dividing by C divides by
# one number. Below, gradients and Newton steps of a sorting loss point the
# same way.

# %%
sorting = nl.sorting.SortingLoss("softsort", temperature=0.5)
generator = torch.Generator().manual_seed(1)
scores, values = (torch.randn(256, 5, generator=generator), torch.rand(256, 5, generator=generator))
found = nl.newton_target(sorting, scores, values, curvature="fisher")
cosine = torch.cosine_similarity(found.gradient, found.step).clamp(max=1)
angle = cosine.acos().rad2deg().max()
print(f"angle between gradient and Newton step: {angle:.2f}° at most")

# %% [markdown]
# ## 2. It clips samples softly
#
# Let a few samples of a batch have gradients a thousand times larger than the
# others, as smoothed solvers do. With the empirical Fisher C = (1/N) Σ gᵢgᵢᵀ
# a sample meets its own gradient in C: the larger it is, the more it is
# divided. Gradients of 64 outputs that point in random directions hardly meet
# each other, and each becomes about gᵢ / (λ + ‖gᵢ‖²/N).

# %%
generator = torch.Generator().manual_seed(2)
count, outputs, damping = 32, 64, 1.0
directions = torch.nn.functional.normalize(torch.randn(count, outputs, generator=generator), dim=1)
slopes = torch.logspace(-1, 3, count)[:, None] * directions


def sloped(y, slopes):  # a loss whose gradients are the slopes
    return (y * slopes).sum(1)


found = nl.newton_target(
    sloped, torch.zeros(count, outputs), slopes, curvature="fisher", damping=damping
)
before, after = found.gradient.norm(dim=1), found.step.norm(dim=1)

# %% alt="Length of each sample's step over the length of its gradient: it rises, peaks and falls again"
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
lengths = torch.logspace(-1, 3, 200)
axes.loglog(lengths, lengths, color="C1", label="plain: as it comes")
axes.loglog(
    lengths,
    lengths / (damping + lengths**2 / count),
    color="C0",
    alpha=0.5,
    label="‖g‖ / (λ + ‖g‖²/N)",
)
axes.loglog(before, after, "o", color="C0", markersize=4, label="Newton step of a sample")
axes.set(xlabel="length of a sample's gradient", ylabel="length of its step")
axes.legend()

# %% [markdown]
# Small gradients pass as they are (divided by λ). Large ones shrink, and the
# largest count least. Gradient clipping treats the whole batch alike; this
# looks at each sample.

# %% [markdown]
# ## 3. It turns directions
#
# Let the loss be a narrow valley, as when one output is in metres and another
# in millimetres. The gradient points across the valley. The Hessian knows
# both curvatures, and divides by each.


# %%
def valley(y):  # curvature 1 along the valley and 20 across it
    along, across = (0.9 * y[:, 0] + 0.44 * y[:, 1], 0.9 * y[:, 1] - 0.44 * y[:, 0])
    return along.square() / 2 + 20 * across.square() / 2


axis = torch.linspace(-2, 2, 8)
points = torch.cartesian_prod(axis, axis)
found = nl.newton_target(valley, points, curvature="hessian", damping=0.1)

# %% tags=["cover"] alt="Arrows over a narrow valley: gradients point across it, Newton steps point to its minimum"
figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.8), layout="constrained", sharey=True)
fine = torch.linspace(-2.3, 2.3, 200)
heights = valley(torch.cartesian_prod(fine, fine)).reshape(200, 200).T
for panel, arrows, title, colour in zip(
    panels, (found.gradient, found.step), ("gradients", "Newton steps"), ("C1", "C0"), strict=True
):
    panel.contour(
        fine, fine, heights, levels=[0.1, 0.5, 1.5, 4, 10, 20, 40], colors="0.6", linewidths=0.7
    )
    unit = -torch.nn.functional.normalize(arrows, dim=1)
    panel.quiver(*points.T, *unit.T, color=colour, angles="xy", width=0.007)
    panel.plot(0, 0, "*", color="C3", markersize=13)
    panel.set(title=title, aspect="equal", xlabel="output 1")
panels[0].set_ylabel("output 2")

# %% [markdown]
# λ decides how far a step turns. It is compared with the curvatures: far
# above them the step is the gradient, far below them it points to the
# minimum. The default derives λ from the batch, and is cautious.

# %%
to_minimum = torch.nn.functional.normalize(points, dim=1)
for damping in (1000.0, 10.0, 1.0, 0.1, "auto"):
    step = nl.newton_target(valley, points, curvature="hessian", damping=damping).step
    angle = torch.cosine_similarity(step, to_minimum).clamp(max=1).acos().rad2deg().mean()
    print(f"λ = {damping!s:6s}  {angle:4.1f}° off the minimum on average")

# %% [markdown]
# So does it matter? Follow both for a few steps. Gradient descent has to take
# steps small enough for the steep direction, and crawls along the flat one.

# %%
start = torch.tensor([[-2.0, -0.2]])
ways = {"gradient descent": [start], "Newton steps": [start]}
for _ in range(12):
    here = ways["gradient descent"][-1]
    ways["gradient descent"].append(here - 0.09 * nl.expand(valley, here, curvature=None).gradient)
    here = ways["Newton steps"][-1]
    ways["Newton steps"].append(
        nl.newton_target(valley, here, curvature="hessian", damping=0.5).target
    )
for name, way in ways.items():
    first, last = valley(way[0]).item(), valley(way[-1]).item()
    print(f"{name:17s} loss {first:.2f} at first, {last:.1g} after 12 steps")

# %% alt="Paths of gradient descent and of Newton steps in the valley; only the Newton steps arrive"
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
axes.contour(
    fine, fine, heights, levels=[0.1, 0.5, 1.5, 4, 10, 20, 40], colors="0.6", linewidths=0.7
)
for (name, way), colour in zip(ways.items(), ("C1", "C0"), strict=True):
    axes.plot(*torch.cat(way).T, "o-", color=colour, markersize=4, label=name)
axes.plot(0, 0, "*", color="C3", markersize=13)
axes.set(xlim=(-2.3, 1), ylim=(-1.3, 0.7), xlabel="output 1", ylabel="output 2")
axes.legend(loc="lower right")

# %% [markdown]
# ## Does it matter for a network?
#
# A network does not move its outputs freely: a step is only what it is asked
# to do. So let one learn to reach a target in the valley, with Adam, and take
# for each loss the best of three learning rates. The control has a damping so
# large that nothing is left of the curvature: effect 1 without effect 3. (Each
# run makes its own Newton loss, which keeps a running size of gradients.)

# %% short="STEPS, SEEDS, RATES = 2, 1, [0.01]"
STEPS, SEEDS, RATES = 200, 5, [0.01, 0.03, 0.1]


def distance(y, target):
    return valley(y - target)


def train(loss, rate, seed):
    torch.manual_seed(seed)
    teacher, student = (
        nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)) for _ in range(2)
    )
    optimizer = torch.optim.Adam(student.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        x = torch.randn(64, 6)
        optimizer.zero_grad()
        loss(student(x), teacher(x).detach()).mean().backward()
        optimizer.step()
        schedule.step()
    x = torch.randn(2000, 6)
    with torch.no_grad():
        return distance(student(x), teacher(x)).mean().item()


# %%
losses = {
    "plain": lambda: distance,
    "only rescaled": lambda: nl.NewtonLoss(distance, "fisher", nl.RunningDamping(1000.0)),
    "Newton, Fisher": lambda: nl.NewtonLoss(distance, "fisher"),
    "Newton, Hessian": lambda: nl.NewtonLoss(distance, "hessian"),
}
print("loss on new samples: mean over seeds (range) at the best learning rate")
best = {}
for name, make in losses.items():
    found = {
        rate: torch.tensor([train(make(), rate, seed) for seed in range(SEEDS)]) for rate in RATES
    }
    rate = min(found, key=lambda rate: found[rate].mean())
    best[name] = found[rate]
    low, high = best[name].min(), best[name].max()
    print(f"{name:16s} {best[name].mean():.4f}  ({low:.4f} to {high:.4f})  at {rate:g}")

# %% [markdown]
# Newton losses end far below the plain loss. Nearly all of that is the scale,
# which the control has, too; with the default damping the turn adds little.
# And here all samples lie in the *same* valley. A batch shares one C: if every
# sample has a valley of its own direction, their mean has none, and nothing
# turns.
#
# ## Which of them does your loss get?
#
# `nl.diagnose` measures all three at your own outputs: see [diagnosing a loss
# that will not train](diagnosing.md). [How it works](../how-it-works.md) has
# the formulas, and [choosing](../choosing.md) says which losses get which.
