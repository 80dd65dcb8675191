# %% [markdown]
# # Differentiable sorting from scratch
#
# Sorting is a matrix of zeros and ones. Soften that matrix in three lines,
# and a network can learn from the order of things.
#
# We build the relaxation called SoftSort, see where the simple version
# breaks, and arrive at the one in the library.

# %%
import matplotlib.pyplot as plt
import torch

import newton_losses as nl

# %% [markdown]
# ## Sorting as a matrix
#
# Sorting multiplies the scores by a permutation matrix: row i has a one at
# the item that comes i-th.

# %%
scores = torch.tensor([2.0, 0.5, 3.1, 1.4, 2.6])
P = torch.nn.functional.one_hot(scores.argsort(), 5).float()
print("scores    ", scores)
print("P @ scores", P @ scores)

# %% [markdown]
# This matrix is of no use to a gradient: move a score a little, and nothing
# changes; move it past another, and two rows jump.
#
# ## Softening it
#
# Item j belongs in row i if its score is the i-th smallest. So compare each
# score with each *sorted* score, and let a softmax choose the nearest. The
# temperature says how sure it has to be.


# %%
def soft_permutation(scores, temperature):
    distances = (scores.sort(-1).values[..., :, None] - scores[..., None, :]).abs()
    return (-distances / temperature).softmax(-1)


# %% alt="The soft permutation matrix of five scores at four temperatures, from blurred to sharp"
figure, panels = plt.subplots(1, 4, figsize=(7.5, 2.3), layout="constrained")
for panel, temperature in zip(panels, (3.0, 1.0, 0.3, 0.05), strict=True):
    panel.imshow(soft_permutation(scores, temperature), cmap="viridis", vmin=0, vmax=1)
    panel.set_title(f"temperature {temperature:g}", size=10)
    panel.set(xticks=range(5), yticks=range(5), xlabel="item")
panels[0].set_ylabel("rank")

# %% [markdown]
# A matrix that depends smoothly on the scores gives smooth ranks, too. Below,
# one score moves past four others. Its hard rank is a staircase; its soft
# rank has a slope everywhere, and the temperature decides how far that slope
# reaches.

# %% alt="The rank of a moving item: a staircase for hard ranks, smooth curves for soft ranks at two temperatures"
moving = torch.linspace(-1, 5, 300)
lists = torch.stack(
    [torch.cat([value[None], torch.tensor([0.5, 1.4, 2.6, 3.1])]) for value in moving]
)
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(moving, lists.argsort(-1).argsort(-1)[:, 0], color="C1", label="hard")
for temperature, colour in ((0.3, "C0"), (1.0, "C2")):
    P = soft_permutation(lists, temperature)
    share = P / P.sum(-2, keepdim=True)  # how an item is shared out among the ranks
    axes.plot(
        moving,
        (share * torch.arange(5)[:, None]).sum(-2)[:, 0],
        color=colour,
        label=f"soft, {temperature:g}",
    )
axes.set(xlabel="score of the moving item", ylabel="its rank")
axes.legend()

# %% [markdown]
# ## A loss
#
# We know the right order, hence the right matrix Q. Compare the two entry by
# entry with a cross-entropy.


# %%
def simple_loss(scores, values, temperature=0.5):
    P = soft_permutation(scores, temperature)
    Q = torch.nn.functional.one_hot(values.argsort(-1), values.shape[-1]).to(P.dtype)
    return -(Q * P.log() + (1 - Q) * (1 - P).log()).mean((-2, -1))


# %% [markdown]
# ## Does it sort?
#
# Take 200 lists of eight random scores each, and let gradient descent move
# the scores themselves until they are in the wanted order. We compare our
# loss with the same one made of other relaxations, from the library.

# %% short="STEPS, LISTS = 3, 4"
STEPS, LISTS = 300, 200

# %%
start = torch.randn(LISTS, 8, generator=torch.Generator().manual_seed(5))
wanted = torch.arange(8).expand(LISTS, 8)


def descend(loss):
    track = [start]
    for _ in range(STEPS):
        here = track[-1].clone().requires_grad_()
        loss(here, wanted).sum().backward()
        track.append((here - here.grad).detach())
    return torch.stack(track)


losses = {
    "SoftSort, ours": simple_loss,
    "NeuralSort": nl.sorting.SortingLoss("neuralsort", temperature=1.0),
    "network, Cauchy": nl.sorting.SortingLoss("cauchy", steepness=3.0),
    "network, logistic": nl.sorting.SortingLoss("logistic", steepness=3.0),
}
tracks = {name: descend(loss) for name, loss in losses.items()}
for name, track in tracks.items():
    is_sorted = (track[-1].argsort(1) == wanted).all(1)
    print(f"{name:18s} {is_sorted.float().mean():6.1%} of the lists sorted")

# %% [markdown]
# Here is the first of these lists. The colours show the wanted order, dark at
# the bottom to light on top. With SoftSort neighbours that are the wrong way
# round can hold each other in place: only the score *nearest* to a sorted one
# counts. NeuralSort compares with all the others at once, and gets through.

# %% tags=["cover"] alt="Eight scores during descent: tangled with SoftSort, in the wanted order with NeuralSort"
figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained")
for panel, name in zip(panels, ("SoftSort, ours", "NeuralSort"), strict=True):
    for way, colour in zip(
        tracks[name][:, 0].T, plt.cm.viridis(torch.linspace(0.1, 0.95, 8)), strict=True
    ):
        panel.plot(way, color=colour, linewidth=2)
    panel.set(title=name, xlabel="step")
panels[0].set_ylabel("score")

# %% [markdown]
# A network has an easier time than free scores: it sees many lists, and what
# it learns from one moves the others. [Choosing](../choosing.md) says which
# relaxation to try first.
#
# ## Where rounding breaks it
#
# The simple version takes logarithms of probabilities. Once a score is far
# from where it belongs, its probability is too small for float32 and rounds
# to zero, and so does 1 − P where P is nearly one. The true loss is harmless
# there, but the computed one is infinite, and its gradient is not a number.
# Below, scores of growing spread, in the wrong order.

# %%
print("spread   loss, simple   gradient     loss, library   gradient")
library_loss = nl.sorting.SortingLoss("softsort", temperature=0.5)
for spread in (1.0, 3.0, 10.0, 30.0, 100.0):
    row = []
    for loss in (simple_loss, library_loss):
        far = spread * torch.tensor([[0.3, 1.2, -0.7, 0.1, -1.5]])
        far.requires_grad_()
        value = loss(far, torch.tensor([[3.0, 1.0, 4.0, 2.0, 5.0]]))
        value.backward()
        row += [value.item(), far.grad.norm().item()]
    print("{:6g} {:14.4g} {:10.3g} {:17.4g} {:10.3g}".format(spread, *row))

# %% [markdown]
# The library computes the same loss from logarithms alone. It never forms P,
# and stays finite for scores of any spread. Where nothing is extreme the two
# agree:

# %%
generator = torch.Generator().manual_seed(0)
many, values = (torch.randn(1000, 5, generator=generator), torch.rand(1000, 5, generator=generator))
difference = (simple_loss(many, values) - library_loss(many, values)).abs().max()
print(f"largest difference on 1,000 random lists: {difference:.1e}")

# %% [markdown]
# ## Where to go from here
#
# The same module has NeuralSort, sorting networks, and relaxations for a
# million items; soft ranks, soft top-k, and losses for graded, partial and
# censored orders. They share one interface:

# %%
settings = {
    "softsort": {"temperature": 0.1},
    "neuralsort": {"temperature": 1.0},
    "cauchy": {"steepness": 10.0},
}
for algorithm, setting in settings.items():
    ranks = nl.sorting.soft_rank(scores, algorithm, **setting)
    print(f"soft ranks of {algorithm:11s}", "  ".join(f"{rank:.2f}" for rank in ranks))

# %% [markdown]
# As a Newton loss it is `nl.NewtonLoss(library_loss, "fisher")`. For lists
# that mostly normalises the gradient: [the quick start](quick-start.md)
# measures how much that is worth, and [sorting losses](../sorting/losses.md)
# has the reference.
