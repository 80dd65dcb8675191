"""Small training problems for `benchmarks/catalogue.py`: what a network of two layers is to learn, and with which loss.

Targets come from a network of the same size with random weights, so that nearly every loss can fall to zero and a ratio
of final losses means something. `PROBLEMS` lists them all; a problem knows nothing of Newton losses.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import SmoothedLoss
from newton_losses.sorting import SortingLoss, SpearmanLoss

Targets = tuple[Tensor, ...]


@dataclass(frozen=True)
class Problem:
    """`loss(y, *targets)` for `outputs` outputs per sample and batches of `batch`.

    `targets` makes them from the teacher's outputs `(N, m)`, which are about standard normal; `metric` judges a trained
    network where that should not be the loss itself.
    """

    name: str
    kind: str
    loss: Callable[..., Tensor]
    outputs: int
    targets: Callable[[Tensor], Targets]
    batch: int = 32
    metric: Callable[..., Tensor] | None = None
    steps: int = 150


def same(teacher: Tensor) -> Targets:
    return (teacher,)


def chance(teacher: Tensor, factor: float = 1e4) -> Tensor:
    """Numbers in (0, 1) as good as random: digits of the teacher's outputs, so that each new sample has new ones."""
    return (teacher.double() * factor).frac().abs().clamp(1e-4, 1 - 1e-4).to(teacher.dtype)


def units(count: int) -> Tensor:
    """From 0.1 to 10, evenly in the logarithm."""
    return torch.logspace(-1, 1, count)


def in_units(teacher: Tensor) -> Targets:
    return (teacher * units(teacher.shape[1]),)


def coupling(size: int, condition: float) -> Tensor:
    """A fixed positive definite matrix with eigenvalues from 1/condition to 1, not aligned with the axes."""
    turn = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(5)))[0]
    return turn @ torch.diag(torch.logspace(-math.log10(condition), 0, size)) @ turn.mT


def squares(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().sum(1)


def coupled(inner: Callable[[Tensor], Tensor], condition: float) -> Callable[..., Tensor]:
    def loss(y: Tensor, target: Tensor) -> Tensor:
        matrix = coupling(y.shape[1], condition).to(y)
        return inner(((y - target) @ matrix * (y - target)).sum(1))

    return loss


def cauchy(y: Tensor, target: Tensor) -> Tensor:
    return torch.log1p(4 * (y - target).square()).sum(1)


def log_cosh(y: Tensor, target: Tensor) -> Tensor:
    return (functional.softplus(2 * (target - y)) + y - target - math.log(2)).sum(1)


def geman_mcclure(y: Tensor, target: Tensor) -> Tensor:
    squared = (y - target).square()
    return (squared / (squared + 1)).sum(1)


def per_unit(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of outputs and targets that have units of their own, and are compared in these."""

    def loss(y: Tensor, target: Tensor) -> Tensor:
        unit = units(y.shape[1]).to(y)
        return inner(y / unit, target / unit)

    return loss


def error_without_outliers(y: Tensor, target: Tensor) -> Tensor:
    return torch.where(target.abs() < 19, (y - target).square(), 0.0).sum(1)


def with_outliers(teacher: Tensor) -> Targets:
    """A tenth of the targets is far off; which, follows from the teacher's own digits."""
    wrong = chance(teacher, 1e3) < 0.1
    return (torch.where(wrong, 20 * teacher.sign(), teacher),)


def gaussian_likelihood(y: Tensor, target: Tensor, truth: Tensor) -> Tensor:
    """The first half of the outputs are means, the second logarithms of the deviation."""
    mean, log_deviation = y.chunk(2, 1)
    return ((target - mean).square() * torch.exp(-2 * log_deviation) / 2 + log_deviation).sum(1)


def noisy(teacher: Tensor) -> Targets:
    """A draw for each sample, and the truth that it was drawn from."""
    mean, log_deviation = teacher.chunk(2, 1)
    return mean + torch.exp(log_deviation) * torch.special.ndtri(chance(mean)), teacher


def noisy_targets(teacher: Tensor) -> Targets:
    """With noise as large as the signal, and the truth."""
    return teacher + torch.special.ndtri(chance(teacher)), teacher


def of_target(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss that looks at the noisy target, and not at the truth behind it."""
    return lambda y, target, truth: loss(y, target)


def of_truth(metric: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda y, target, truth: metric(y, truth)


def counts(teacher: Tensor) -> Targets:
    """Poisson counts, and the logarithms of their rates."""
    rate = teacher.clamp(max=3).exp()
    draws = torch.stack([-torch.log(chance(teacher, 1e4 + 37 * k)) for k in range(60)]).cumsum(0)
    return (draws < rate).sum(0).to(teacher.dtype), teacher


def count_likelihood(y: Tensor, target: Tensor) -> Tensor:
    return (y.exp() - target * y).sum(1)


def count_error(y: Tensor, truth: Tensor) -> Tensor:
    rate = truth.clamp(max=3)
    return (y.exp() - rate.exp() * (y - rate + 1)).sum(1)


def drawn_labels(teacher: Tensor) -> Targets:
    """Several labels with the teacher's probabilities, and its logits."""
    return (chance(teacher) < torch.sigmoid(teacher)).to(teacher.dtype), teacher


def label_error(y: Tensor, truth: Tensor) -> Tensor:
    """The divergence of the true probabilities from those predicted."""
    return binary(y, torch.sigmoid(truth)) - binary(truth, torch.sigmoid(truth))


def cosine(y: Tensor, target: Tensor) -> Tensor:
    return (1 - torch.cos(2 * (y - target))).sum(1)


def waves(y: Tensor, target: Tensor) -> Tensor:
    return (torch.sin(2 * y) - torch.sin(2 * target)).square().sum(1) + 0.05 * (y - target).square().sum(1)


def exponentials(y: Tensor, target: Tensor) -> Tensor:
    """Growth rates as outputs: the gradients of large ones explode."""
    return (torch.exp(1.5 * y) - torch.exp(1.5 * target)).square().sum(1)


def rosenbrock(y: Tensor, target: Tensor) -> Tensor:
    moved = y - target
    return (10 * (moved[:, 1:] - moved[:, :-1].square()).square() + moved[:, :-1].square()).sum(1)


def arm(angles: Tensor, target: Tensor) -> Tensor:
    """Where the joints of a robot's arm are, against where they should be."""

    def places(angles: Tensor) -> Tensor:
        turned = angles.cumsum(1)
        return torch.stack([turned.cos().cumsum(1), turned.sin().cumsum(1)], -1)

    return (places(angles) - places(target))[:, -1].square().sum(1)


def curve(y: Tensor, target: Tensor) -> Tensor:
    """Amplitude, decay, frequency and phase of an oscillation, judged by its graph."""
    time = torch.linspace(0, 3, 24, dtype=y.dtype, device=y.device)

    def graph(y: Tensor) -> Tensor:
        amplitude, decay, frequency, phase = (y[:, k : k + 1] for k in range(4))
        return (1 + 0.5 * amplitude) * torch.exp(-functional.softplus(decay) * time) * torch.sin(
            (3 + 0.5 * frequency) * time + phase
        )  # fmt: skip

    return (graph(y) - graph(target)).square().sum(1)


def soft_dtw(y: Tensor, target: Tensor, temperature: float = 0.1) -> Tensor:
    """Soft dynamic time warping of two sequences of numbers."""
    distance = (y[:, :, None] - target[:, None, :]).square()
    far = torch.full_like(distance[:, 0, 0], 1e4)
    row = [torch.zeros_like(far), *[far] * y.shape[1]]
    for i in range(y.shape[1]):
        following = [far]
        for j in range(y.shape[1]):
            before = torch.stack([row[j + 1], following[j], row[j]], -1)
            following.append(distance[:, i, j] - temperature * torch.logsumexp(-before / temperature, -1))
        row = following
    return row[-1]


def hard_dtw(y: Tensor, target: Tensor) -> Tensor:
    return soft_dtw(y, target, 1e-4)


def labels(teacher: Tensor) -> Targets:
    return (teacher.argmax(1),)


def cross_entropy(y: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(y, target, reduction="none")


def soft_cross_entropy(y: Tensor, target: Tensor) -> Tensor:
    """Against probabilities, minus their entropy."""
    wanted = torch.softmax(2 * target, 1)
    return (wanted * (torch.log_softmax(2 * target, 1) - torch.log_softmax(y, 1))).sum(1)


def signs(teacher: Tensor) -> Targets:
    return ((teacher > 0).to(teacher.dtype),)


def binary(y: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(y, target, reduction="none").sum(1)


def focal(y: Tensor, target: Tensor) -> Tensor:
    logarithm = torch.log_softmax(y, 1).gather(1, target[:, None])[:, 0]
    return -((1 - logarithm.exp()) ** 2) * logarithm


def dice(y: Tensor, target: Tensor) -> Tensor:
    inside = torch.sigmoid(y)
    return 1 - 2 * (inside * target).sum(1) / (inside.sum(1) + target.sum(1) + 1e-3)


def wrong_classes(y: Tensor, target: Tensor) -> Tensor:
    return (y.argmax(1) != target).to(y.dtype)


def grades(teacher: Tensor) -> Targets:
    """Relevance 0 to 4."""
    return ((2 * teacher + 2).clamp(0, 4).round(),)


def inversions(y: Tensor, target: Tensor) -> Tensor:
    """The share of pairs in the wrong order."""
    wanted = target[:, :, None] > target[:, None, :]
    wrong = wanted & (y[:, :, None] <= y[:, None, :])
    return wrong.sum((1, 2)) / wanted.sum((1, 2)).clamp(min=1)


def ranknet(y: Tensor, target: Tensor) -> Tensor:
    wanted = (target[:, :, None] > target[:, None, :]).to(y.dtype)
    return (wanted * functional.softplus(-(y[:, :, None] - y[:, None, :]))).sum((1, 2))


def lambda_loss(y: Tensor, target: Tensor) -> Tensor:
    """RankNet with the change of NDCG as weights, which are no part of the derivative."""
    gain = 2**target - 1
    place = y.detach().argsort(1, descending=True).argsort(1).to(y.dtype)
    discount = 1 / torch.log2(place + 2)
    weight = (gain[:, :, None] - gain[:, None, :]).abs() * (discount[:, :, None] - discount[:, None, :]).abs()
    wanted = (target[:, :, None] > target[:, None, :]).to(y.dtype)
    return (weight * wanted * functional.softplus(-(y[:, :, None] - y[:, None, :]))).sum((1, 2))


def listnet(y: Tensor, target: Tensor) -> Tensor:
    return -(torch.softmax(target, 1) * torch.log_softmax(y, 1)).sum(1)


def list_mle(y: Tensor, target: Tensor) -> Tensor:
    ordered = y.gather(1, target.argsort(1, descending=True))
    return (ordered.flip(1).logcumsumexp(1).flip(1) - ordered).sum(1)


def approx_ndcg(y: Tensor, target: Tensor) -> Tensor:
    gain = 2**target - 1
    place = torch.sigmoid(5 * (y[:, None, :] - y[:, :, None])).sum(2) + 0.5
    ideal = gain.sort(1, descending=True).values / torch.log2(torch.arange(y.shape[1], device=y.device) + 2)
    return 1 - (gain / torch.log2(place + 1)).sum(1) / ideal.sum(1).clamp(min=1e-6)


def steep_ranks(y: Tensor, target: Tensor) -> Tensor:
    wanted = target.argsort(1).argsort(1).to(y.dtype)
    return (torch.sigmoid(10 * (y[:, :, None] - y[:, None, :])).sum(2) - 0.5 - wanted).square().sum(1)


def misplaced(y: Tensor, target: Tensor) -> Tensor:
    return (y.argsort(1).argsort(1) != target.argsort(1).argsort(1)).sum(1).to(y.dtype)


def cheapest_path(costs: Tensor) -> Tensor:
    """The cheapest way down a 4×4 grid of costs, one cell per row, at most one column aside; as a 0/1 mask."""
    grid = costs.reshape(*costs.shape[:-1], 4, 4)
    reach, back = grid[..., 0, :], []
    for row in range(1, 4):
        padded = functional.pad(reach, (1, 1), value=math.inf)
        choices = torch.stack([padded[..., :-2], padded[..., 1:-1], padded[..., 2:]], -1)
        best, move = choices.min(-1)
        back.append(move - 1)
        reach = best + grid[..., row, :]
    place = reach.argmin(-1, keepdim=True)
    rows = [functional.one_hot(place[..., 0], 4)]
    for move in reversed(back):
        place = place + move.gather(-1, place)
        rows.append(functional.one_hot(place[..., 0], 4))
    return torch.stack(rows[::-1], -2).flatten(-2).to(costs.dtype)


def off_the_path(costs: Tensor, wanted: Tensor) -> Tensor:
    return (cheapest_path(costs) - wanted).abs().sum(1)


def path(teacher: Tensor) -> Targets:
    return (cheapest_path(teacher),)


def seeded(kind: Any, *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, generator=torch.Generator().manual_seed(0), **options)


smoothed_ranks = seeded(SmoothedLoss, misplaced, scale=1.0, num_samples=10)
smoothed_path = seeded(SmoothedLoss, off_the_path, scale=0.3, num_samples=10)
fenchel_young_path = seeded(FenchelYoungLoss, cheapest_path, scale=0.3, num_samples=10)

PROBLEMS = (
    Problem("squares", "convex", squares, 4, same),
    Problem("squares, units", "convex", squares, 8, in_units),
    Problem("squares, coupled 100", "convex", coupled(lambda q: q, 100.0), 6, same),
    Problem("squares, noise", "convex", of_target(squares), 4, noisy_targets, metric=of_truth(squares)),
    Problem("squares, noise, batch 8", "convex", of_target(squares), 4, noisy_targets, 8, of_truth(squares)),
    Problem("Poisson counts", "convex", of_target(count_likelihood), 4, counts, metric=of_truth(count_error)),
    Problem("drawn labels, batch 8", "convex", of_target(binary), 6, drawn_labels, 8, of_truth(label_error)),
    Problem("absolute", "convex", lambda y, t: (y - t).abs().sum(1), 4, same),
    Problem("Huber", "convex", lambda y, t: functional.huber_loss(y, t, reduction="none").sum(1), 4, same),
    Problem("quantile", "convex", lambda y, t: torch.maximum(0.9 * (t - y), 0.1 * (y - t)).sum(1), 4, same),
    Problem("Poisson", "convex", lambda y, t: (y.exp() - t.exp() * (y - t + 1)).sum(1), 4, same),
    Problem("cross-entropy", "convex", cross_entropy, 10, labels, metric=wrong_classes),
    Problem("soft labels", "convex", soft_cross_entropy, 6, same),
    Problem("several labels", "convex", binary, 6, signs),
    Problem("multi-margin", "convex", lambda y, t: functional.multi_margin_loss(y, t, reduction="none"), 6, labels),
    Problem("log-cosh, units", "convex", per_unit(log_cosh), 8, in_units),
    Problem("Cauchy", "robust", cauchy, 4, same),
    Problem("Cauchy, units", "robust", per_unit(cauchy), 8, in_units),
    Problem("Cauchy, small batch", "robust", cauchy, 4, same, batch=8),
    Problem("Cauchy, coupled 100", "robust", coupled(torch.log1p, 100.0), 6, same),
    Problem("root, coupled 10000", "robust", coupled(lambda q: torch.sqrt(1e-4 + q), 1e4), 6, same),
    Problem("Geman-McClure", "robust", geman_mcclure, 6, same),
    Problem("Geman-McClure, units", "robust", per_unit(geman_mcclure), 8, in_units),
    Problem("squares, outliers", "robust", squares, 4, with_outliers, metric=error_without_outliers),
    Problem("Cauchy, outliers", "robust", cauchy, 4, with_outliers, metric=error_without_outliers),
    Problem("Gaussian likelihood", "coupled", gaussian_likelihood, 6, noisy, metric=of_truth(squares)),
    Problem("angles", "coupled", cosine, 4, same),
    Problem("waves", "coupled", waves, 4, same),
    Problem("exponentials", "coupled", exponentials, 4, same),
    Problem("Rosenbrock", "coupled", rosenbrock, 4, same),
    Problem("robot arm", "coupled", arm, 3, same),
    Problem("oscillation", "coupled", curve, 4, same),
    Problem("soft-DTW", "third party", soft_dtw, 3, same, metric=hard_dtw),
    Problem("focal", "third party", focal, 6, labels, metric=wrong_classes),
    Problem("Dice", "third party", dice, 16, signs),
    Problem("RankNet", "list", ranknet, 6, grades, metric=inversions),
    Problem("LambdaLoss", "list", lambda_loss, 6, grades, metric=inversions),
    Problem("ListNet", "list", listnet, 6, grades, metric=inversions),
    Problem("ListMLE", "list", list_mle, 6, grades, metric=inversions),
    Problem("ApproxNDCG", "list", approx_ndcg, 6, grades, metric=inversions),
    Problem("steep ranks", "list", steep_ranks, 5, same, metric=inversions),
    Problem("SoftSort", "list", SortingLoss("softsort", temperature=0.1), 5, same, metric=inversions),
    Problem("NeuralSort", "list", SortingLoss("neuralsort", temperature=1.0), 5, same, metric=inversions),
    Problem("logistic network", "list", SortingLoss("logistic", steepness=10.0), 5, same, metric=inversions),
    Problem("Cauchy network", "list", SortingLoss("cauchy", steepness=10.0), 5, same, metric=inversions),
    Problem("Spearman", "list", SpearmanLoss("softsort"), 5, same, metric=inversions),
    Problem("smoothed ranks, 10 draws", "estimated", smoothed_ranks, 5, same, metric=inversions),
    Problem("smoothed path, 10 draws", "estimated", smoothed_path, 16, path, batch=8, metric=off_the_path),
    Problem("Fenchel-Young path", "estimated", fenchel_young_path, 16, path, batch=16, metric=off_the_path),
)  # fmt: skip
