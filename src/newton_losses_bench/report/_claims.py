"""The claims of the paper about its tables and figure 4, as data: where each is made, and the rule that decides it.

Those about time, gradients and convex layers are beside their tables, since they rest on other measurements.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from ..statistics import Summary
from ._blocks import Status, Verdict
from ._measured import PaperFigures
from ._names import LOOP_TITLES, TITLES
from ._rules import Need, Part, Setting, alike, best, better, judge, measured, significant

SORTING = ("neuralsort", "softsort", "logistic", "cauchy")
HARD = SORTING[:3]
LENGTHS = (5, 10)
LOOPS = tuple(LOOP_TITLES)
NEWTON = ("hessian", "fisher")


@dataclass(frozen=True)
class Claim:
    """A claim: its words, its place in the paper, the rule that decides it, and the rule as a function."""

    words: str
    source: str
    rule: str
    parts: Callable[[Setting], Sequence[Part]]
    need: Need = "all"

    def verdict(self, settings: Sequence[Setting]) -> Verdict:
        """What every setting says about it, and what the rule makes of the paper's own figures where it has some."""
        judgements = tuple(judge(setting.label, self.parts(setting), self.need) for setting in settings)
        paper = judge("the paper", self.parts(PaperFigures()), self.need, brief=True)
        own = ""
        if paper.status is not Status.OPEN:
            verb = "meet it" if paper.status is Status.CONFIRMED else "do not meet it"
            own = f"The paper’s own figures {verb} ({paper.figures})."
        return Verdict(self.words, self.source, self.rule, judgements, own)


def each_cell(algorithms: Sequence[str] = SORTING) -> list[tuple[int, str, str]]:
    """The comparisons of table 1: the length of sets, the loss, and both in words."""
    return [(n, name, f"{TITLES[name]} n={n}") for n, name in product(LENGTHS, algorithms)]


def newton_figure(at: Setting, name: str, n: int, numerics: str = "reference") -> Summary | None:
    """The better of the two Newton losses, once both are measured."""
    return best(*(at.figure(f"{name}-n{n}", method, numerics) for method in NEWTON))


def _every_loss(at: Setting) -> list[Part]:
    return [
        better(title, newton_figure(at, name, n), at.figure(f"{name}-n{n}", "baseline"))
        for n, name, title in each_cell()
    ]


def _substantial(at: Setting) -> list[Part]:
    return [
        significant(title, newton_figure(at, name, n), at.figure(f"{name}-n{n}", "baseline"))
        for n, name, title in each_cell(HARD)
    ]


def _doubled(at: Setting) -> list[Part]:
    parts = []
    for n, name, title in each_cell():
        base = at.figure(f"{name}-n{n}", "baseline")
        factor = base.mean if base is not None and measured(base) else 0.0
        parts.append(better(title, newton_figure(at, name, n), base, by=factor))
    return parts


def _hessian_over_fisher(at: Setting) -> list[Part]:
    excepted = {(5, "neuralsort"), (5, "softsort")}
    return [
        better(title, at.figure(f"{name}-n{n}", "hessian"), at.figure(f"{name}-n{n}", "fisher"))
        for n, name, title in each_cell()
        if (n, name) not in excepted
    ]


def _cauchy(at: Setting) -> list[Part]:
    return [
        alike("n=5", at.figure("cauchy-n5", "hessian"), at.figure("cauchy-n5", "baseline")),
        better("n=10", at.figure("cauchy-n10", "hessian"), at.figure("cauchy-n10", "baseline"), by=1.0),
    ]


def _fifteen(at: Setting) -> list[Part]:
    return [better("Cauchy network n=15", at.figure("cauchy-n15", "fisher"), at.figure("cauchy-n15", "baseline"))]


SORTING_CLAIMS = (
    Claim(
        "Newton losses improve over the baseline for every sorting loss.",
        "section 4.1, table 1",
        "In all eight cells (four losses, n = 5 and 10) the better of the Hessian and the Fisher variant has a higher "
        "mean than the baseline.",
        _every_loss,
    ),
    Claim(
        "For NeuralSort, SoftSort and logistic networks the improvement is substantial.",
        "section 4.1, table 1",
        "In all six cells the better variant is significantly better than the baseline (one-sided t-test at .05).",
        _substantial,
    ),
    Claim(
        "For some losses they more than double the accuracy.",
        "section 1",
        "In at least one cell of table 1 the better variant has more than twice the baseline's mean.",
        _doubled,
        "any",
    ),
    Claim(
        "The Hessian is better than the Fisher, except for NeuralSort and SoftSort at n = 5.",
        "section 4.1, table 1",
        "In the other six cells the Hessian's mean is higher than the Fisher's.",
        _hessian_over_fisher,
    ),
    Claim(
        "For Cauchy networks the Hessian is on par at n = 5 and gains more than one point at n = 10.",
        "section 4.1, table 1",
        "n = 5: neither is significantly better. n = 10: the Hessian's mean is more than 1 above the baseline's.",
        _cauchy,
    ),
    Claim(
        "At n = 15 the Fisher improves the Cauchy network too.",
        "section 4.1",
        "Its mean is higher than the baseline's.",
        _fifteen,
    ),
)


def _bellman_ford(at: Setting) -> list[Part]:
    return [
        better(
            LOOP_TITLES[loop],
            at.figure(f"bellman-ford-{loop}", "fisher"),
            at.figure(f"bellman-ford-{loop}", "baseline"),
        )
        for loop in LOOPS
    ]


def _smoothing(at: Setting) -> list[Part]:
    arms = [("smoothed-loss", "hessian"), ("smoothed-loss", "fisher"), ("smoothed-algorithm", "fisher")]
    return [
        better(
            f"{TITLES[name]}, {samples} samples, {method.title()}",
            at.figure(f"{name}-{samples}", method),
            at.figure(f"{name}-{samples}", "baseline"),
        )
        for (name, method), samples in product(arms, ("10", "30"))
    ]


def _algorithm_over_loss(at: Setting) -> list[Part]:
    return [
        better(
            f"{samples} samples",
            at.figure(f"smoothed-algorithm-{samples}", "baseline"),
            at.figure(f"smoothed-loss-{samples}", "baseline"),
        )
        for samples in ("10", "30")
    ]


def _fenchel_young_hessian(at: Setting) -> list[Part]:
    name = "fenchel-young"
    return [
        better(
            f"{samples} samples",
            at.figure(f"{name}-{samples}", "hessian"),
            at.figure(f"{name}-{samples}", "baseline"),
            by=2.0,
        )
        for samples in ("3", "10", "30")
    ]


def _fenchel_young_fisher(at: Setting) -> list[Part]:
    name = "fenchel-young"
    return [
        alike(
            f"{samples} samples", at.figure(f"{name}-{samples}", "fisher"), at.figure(f"{name}-{samples}", "baseline")
        )
        for samples in ("3", "10", "30")
    ]


def _few_and_many(at: Setting) -> list[Part]:
    smoothing = ("smoothed-loss", "smoothed-algorithm")
    few = [
        better(
            f"3 samples, over {TITLES[name]}",
            at.figure("fenchel-young-3", "baseline"),
            at.figure(f"{name}-3", "baseline"),
        )
        for name in smoothing
    ]
    many = [
        better(
            f"30 samples, {TITLES[name]}",
            at.figure(f"{name}-30", "baseline"),
            at.figure("fenchel-young-30", "baseline"),
        )
        for name in smoothing
    ]
    return [*few, *many]


PATHS_CLAIMS = (
    Claim(
        "The Fisher improves all four variants of relaxed Bellman-Ford.",
        "section 4.2, table 2",
        "In all four its mean is higher than the baseline's.",
        _bellman_ford,
    ),
    Claim(
        "Newton losses improve stochastic smoothing in every case with more than 3 samples.",
        "section 4.2, table 3",
        "With 10 and 30 samples the mean of each variant is higher than the baseline's.",
        _smoothing,
    ),
    Claim(
        "From 10 samples on, smoothing the algorithm does better than smoothing the loss.",
        "section 4.2, table 3",
        "With 10 and 30 samples its baseline has the higher mean.",
        _algorithm_over_loss,
    ),
    Claim(
        "With the Fenchel-Young loss the Hessian gains more than 2 points.",
        "section 4.2, table 3",
        "With 3, 10 or 30 samples its mean is more than 2 above the baseline's.",
        _fenchel_young_hessian,
        "any",
    ),
    Claim(
        "With the Fenchel-Young loss the Fisher makes no difference.",
        "section 4.2, table 3",
        "With 3, 10 and 30 samples neither is significantly better than the other.",
        _fenchel_young_fisher,
    ),
    Claim(
        "With few samples the Fenchel-Young loss does better than smoothing, with many samples worse.",
        "section 4.2, table 3",
        "Its baseline has the higher mean with 3 samples, and that of smoothing with 30, for both kinds of smoothing.",
        _few_and_many,
    ),
)


def _robust(at: Setting) -> list[Part]:
    parts = []
    for name in ("neuralsort", "softsort"):
        base = at.figure(f"{name}-n5", "baseline", metric="element_wise")
        for method in NEWTON:
            found = at.ablation(f"{name}-n5", method)
            worst = min(found.values(), key=lambda summary: summary.mean) if len(found) == 13 else None
            parts.append(significant(f"{TITLES[name]}, {method.title()}, at its worst λ", worst, base))
    return parts


def _sensitive(at: Setting) -> list[Part]:
    def spread(name: str, method: str) -> float | None:
        means = [summary.mean for summary in at.ablation(f"{name}-n5", method).values() if measured(summary)]
        return max(means) - min(means) if len(means) == 13 else None

    parts = []
    for method in NEWTON:
        first, second = spread("neuralsort", method), spread("softsort", method)
        if first is None or second is None:
            parts.append(Part(None, f"{method.title()}: not all 13 values of λ"))
        else:
            parts.append(Part(first > second, f"{method.title()}: {first:.1f} points against {second:.1f}"))
    return parts


ABLATION_CLAIMS = (
    Claim(
        "Both variants improve NeuralSort and SoftSort significantly over six orders of magnitude of λ.",
        "section 4.3, figure 4",
        "At the worst of the 13 values of λ from 0.001 to 1000 the element-wise accuracy is significantly above the "
        "baseline's.",
        _robust,
    ),
    Claim(
        "NeuralSort is more sensitive to λ than SoftSort.",
        "section 4.3, figure 4",
        "The element-wise accuracy varies more over the 13 values, for both variants.",
        _sensitive,
    ),
)
