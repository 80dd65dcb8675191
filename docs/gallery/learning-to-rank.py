# %% [markdown]
# # Learning to rank
#
# Search results come in lists of different lengths, with grades instead of an
# order. Pad the lists, pass a mask, and train on a smooth NDCG.
#
# NDCG is the measure of search engines: it counts grades, discounted the
# further down an item is listed, and is 1 for the best possible order. It
# depends on ranks alone, so it has no gradient. `NDCGLoss` puts soft ranks in
# their place.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import newton_losses as nl
from newton_losses import sorting

# %% [markdown]
# ## Lists of different lengths
#
# A query has 3 to 20 documents. Each document has ten features and a grade
# from 0 (useless) to 4 (just right), which depends on the features in a way
# the model does not know, and on chance. `pad_lists` makes one tensor of
# them, and a mask that is True where a document exists.

# %% short="QUERIES, STEPS, SEEDS = 20, 2, 1"
QUERIES, STEPS, SEEDS = 400, 300, 5


# %%
def draw_queries(count, generator):
    lengths = torch.randint(3, 21, (count,), generator=generator)
    documents = torch.randn(
        int(lengths.sum()), 10, generator=generator
    )  # all of them, one after the other
    worth = documents[:, 0] * documents[:, 1] + torch.sin(2 * documents[:, 2]) + documents[:, 3]
    worth = worth + torch.randn(len(worth), generator=generator) / 2
    grades = torch.bucketize(worth, torch.tensor([0.0, 1.0, 2.0, 3.0]))
    # Pad the numbers of the documents: features and grades follow.
    numbers, mask = sorting.pad_lists(torch.arange(len(documents)).split(lengths.tolist()))
    return documents[numbers], grades[numbers], mask


features, grades, mask = draw_queries(QUERIES, torch.Generator().manual_seed(0))
print("features", tuple(features.shape), " grades", tuple(grades.shape), " mask", tuple(mask.shape))
print("documents per grade, 0 to 4:", torch.bincount(grades[mask]).tolist())

# %% alt="Twelve padded lists as rows: coloured by grade where a document exists, empty where not"
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
shown = axes.imshow(
    torch.where(mask, grades.float(), torch.nan)[:12], cmap="viridis", aspect="auto"
)
axes.set(xlabel="document", ylabel="query", xticks=range(0, 20, 5), yticks=[])
figure.colorbar(shown, label="grade", ticks=range(5))

# %% [markdown]
# ## Loss and training
#
# Losses and measures of `nl.sorting` take the mask. Padding gets exactly no
# weight and no gradient, so a padded batch gives the same as its lists one by
# one:

# %%
loss = sorting.NDCGLoss("softsort", temperature=0.1)
scores = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1))
together = loss(scores, grades, mask)
alone = torch.stack([loss(scores[i, mask[i]], grades[i, mask[i]]) for i in range(QUERIES)])
difference = (together - alone).abs().max()
print(f"largest difference between padded and single lists: {difference:.1e}")


# %%
def train(loss, seed):
    torch.manual_seed(seed)
    features, grades, mask = draw_queries(QUERIES, torch.Generator().manual_seed(2 * seed))
    test_features, test_grades, test_mask = draw_queries(
        QUERIES, torch.Generator().manual_seed(2 * seed + 1)
    )
    model = nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    curve = []
    for step in range(STEPS + 1):
        if step % 30 == 0:
            with torch.no_grad():
                scores = model(test_features)
            curve.append(sorting.ndcg(scores, test_grades, 10, mask=test_mask).mean().item())
        batch = torch.randint(QUERIES, (64,))
        optimizer.zero_grad()
        loss(model(features[batch]), grades[batch], mask=mask[batch]).mean().backward()
        optimizer.step()
    return model, curve


# %% [markdown]
# Five ways, five seeds each, each seed with queries of its own: the soft
# NDCG, two classics that do not look at NDCG (ListNet and pairs), and two of
# them as Newton losses. A Newton loss gets the mask as well; its curvature
# knows only documents that exist, and does not depend on the order in which
# they are stored.

# %%
losses = {
    "soft NDCG": lambda: loss,
    "soft NDCG, Newton": lambda: nl.NewtonLoss(loss, "fisher"),
    "ListNet": sorting.ListNetLoss,
    "ListNet, Newton": lambda: nl.NewtonLoss(sorting.ListNetLoss(), "fisher"),
    "pairs": sorting.PairwiseLogisticLoss,
}
runs = {name: [train(make(), seed) for seed in range(SEEDS)] for name, make in losses.items()}
curves = {name: torch.tensor([curve for _, curve in found]) for name, found in runs.items()}

print("NDCG@10 of new queries, mean and range over seeds")
for name, found in curves.items():
    last = found[:, -1]
    print(f"{name:18s} {last.mean():.3f}   ({last.min():.3f} to {last.max():.3f})")

# %% alt="NDCG of new queries over training steps for five losses"
figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
steps = 30 * torch.arange(curves["ListNet"].shape[1])
styles = {
    "soft NDCG": "C1-",
    "soft NDCG, Newton": "C0-",
    "ListNet": "C1--",
    "ListNet, Newton": "C0--",
    "pairs": "C2:",
}
for name, style in styles.items():
    axes.plot(steps, curves[name].mean(0), style, label=name)
axes.set(xlabel="step", ylabel="NDCG@10, mean over seeds")
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))

# %% [markdown]
# **A tie, and not in favour of the clever loss.** All losses end close
# together, and the classics are a little ahead of the soft NDCG, which looks
# at fewer documents at a time. As Newton losses they gain nothing: the
# documents of a query are exchangeable, so a Newton loss only normalises, and
# Adam does that already. Try `ListNetLoss` first, and keep NDCG for the
# measure.
#
# ## What has changed for one query
#
# The grades of a new query's documents, in the order of the scores. Before
# training it is arbitrary; after, the good ones come first.

# %% tags=["cover"] alt="Bars of the grades of one query in the order of the scores, untrained, trained, and at best"
features, grades, mask = draw_queries(50, torch.Generator().manual_seed(123))
query = int(
    torch.where(mask.sum(1) == mask.sum(1).max(), grades.float().std(1), 0.0).argmax()
)  # long, with many grades
torch.manual_seed(0)
untrained = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(1))
trained, _ = runs["ListNet"][0]
with torch.no_grad():
    orders = {
        name: model(features)[query, mask[query]]
        for name, model in (("untrained", untrained), ("trained", trained))
    }
orders["at best"] = grades[query, mask[query]].float()
figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.4), layout="constrained", sharey=True)
for panel, (name, scores) in zip(panels, orders.items(), strict=True):
    own = grades[query, mask[query]]
    ranked, measure = (own[scores.argsort(descending=True)], sorting.ndcg(scores, own, 10))
    panel.bar(range(len(ranked)), ranked + 0.05, color=plt.cm.viridis(ranked / 4))
    panel.set(title=f"{name}: {measure:.2f}", xlabel="place", xticks=[])
panels[0].set_ylabel("grade")

# %% [markdown]
# The number in each title is the NDCG@10. [Lists](../sorting/lists.md) has
# what else there is: partial orders, censored times, top-k, lists of a
# million items, and how to come from other libraries.
