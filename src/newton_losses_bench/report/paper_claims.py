"""The claims: what the paper says, what it does not ask, and our own goal, each with the rule that decides it."""

import math
import statistics
from collections.abc import Sequence

from ..cells import MINUTES, VARIANTS, cells
from ..statistics import Summary
from .claims import (
    Claim,
    Part,
    Parts,
    Verdict,
    across,
    alike,
    better,
    better_by,
    both,
    compare,
    doubled,
    judge,
    not_behind,
    reaches,
    significant,
    within,
)
from .collect import (
    LEAST_SEEDS,
    LOOPS,
    METHODS,
    NEWTON,
    Evidence,
    Index,
    Setting,
    column_title,
    columns,
    measured,
    paper_cells,
    papers_best,
)

SAME_TIME = 1.05  # ratios of times up to this count as "the same time"
CONVEX_SEEDS = 5  # as in the paper
BEYOND = "Beyond the paper"  # the subject of the claims that are not the paper's


def _robust(at: Setting) -> list[Part]:
    parts = []
    for column in ("neuralsort-n5", "softsort-n5"):
        base = at.figure(column, "baseline", "reference", "element_wise")
        for method in NEWTON:
            worst = min(_ablation(at, column, method), key=lambda figure: figure.mean, default=None)
            name = f"{column_title(column)}, {METHODS[method]}, at its worst λ"
            parts.append(compare(name, [worst], [base], significant))
    return parts


def _sensitive(at: Setting) -> list[Part]:
    parts = []
    for method in NEWTON:
        found = [[one.mean for one in _ablation(at, column, method)] for column in ("neuralsort-n5", "softsort-n5")]
        if not all(found):
            parts.append(Part(None, f"{METHODS[method]} (not every λ)"))
            continue
        first, second = (max(means) - min(means) for means in found)
        parts.append(Part(first > second, f"{METHODS[method]} {first:.1f} points against {second:.1f}"))
    return parts


def _ablation(at: Setting, column: str, method: str) -> list[Summary]:
    """Element-wise accuracy for every λ of the ablation; nothing unless each has enough seeds."""
    dampings = [cell.config["damping"] for cell in cells("ablation", only=f"{column}-{method}-*")]
    found = [at.figure(column, f"{method}-{damping:g}", metric="element_wise") for damping in dampings]
    known = [figure for figure in found if figure is not None and measured(figure)]
    return known if len(known) == len(found) else []


EIGHT = tuple(f"{name}-n{n}" for n in (5, 10) for name in ("neuralsort", "softsort", "logistic", "cauchy"))
FENCHEL_YOUNG = tuple(f"fenchel-young-{count}" for count in (3, 10, 30))
SMOOTHED_LOSS, SMOOTHED_ALGORITHM = (
    tuple(f"smoothed-{what}-{count}" for count in (10, 30)) for what in ("loss", "algorithm")
)

SORTING_CLAIMS = (
    Claim(
        "Newton losses improve over the baseline for every sorting loss.",
        "section 4.1, table 1",
        "In all eight cells (four losses, n = 5 and 10) the better of Hessian and Fisher has a higher mean than the "
        "baseline.",
        within(better, EIGHT, "hessian,fisher", "baseline"),
    ),
    Claim(
        "For NeuralSort, SoftSort and logistic networks the improvement is substantial.",
        "section 4.1, table 1",
        "In all six cells the better of Hessian and Fisher is significantly better (one-sided t-test at .05).",
        within(significant, [one for one in EIGHT if "cauchy" not in one], "hessian,fisher", "baseline"),
    ),
    Claim(
        "For some losses they more than double the accuracy.",
        "section 1",
        "In at least one cell of table 1 the better of Hessian and Fisher has more than twice the baseline’s mean.",
        within(doubled, EIGHT, "hessian,fisher", "baseline"),
        "any",
    ),
    Claim(
        "The Hessian beats the Fisher, except for NeuralSort and SoftSort at n = 5.",
        "section 4.1, table 1",
        "In the other six cells the Hessian’s mean is higher than the Fisher’s.",
        within(better, EIGHT[2:], "hessian", "fisher"),
    ),
    Claim(
        "For Cauchy networks the Hessian is on par at n = 5 and gains more than a point at n = 10.",
        "section 4.1, table 1",
        "n = 5: neither is significantly better. n = 10: the Hessian’s mean is more than 1 above the baseline’s.",
        both(
            within(alike, ["cauchy-n5"], "hessian", "baseline"),
            within(better_by(1.0), ["cauchy-n10"], "hessian", "baseline"),
        ),
    ),
    Claim(
        "At n = 15 the Fisher improves the Cauchy network too.",
        "section 4.1",
        "Its mean is higher than the baseline’s.",
        within(better, ["cauchy-n15"], "fisher", "baseline"),
    ),
    Claim(
        "Both variants improve NeuralSort and SoftSort over six orders of magnitude of λ.",
        "section 4.3, figure 4",
        "At the worst of the 13 values of λ the element-wise accuracy is significantly above the baseline’s.",
        _robust,
    ),
    Claim(
        "NeuralSort is more sensitive to λ than SoftSort.",
        "section 4.3, figure 4",
        "The element-wise accuracy varies more over the 13 values of λ, for both variants.",
        _sensitive,
    ),
)
PATHS_CLAIMS = (
    Claim(
        "The Fisher improves all four variants of relaxed Bellman-Ford.",
        "section 4.2, table 2",
        "In all four its mean is higher than the baseline’s.",
        within(better, [f"bellman-ford-{loop}" for loop in LOOPS], "fisher", "baseline"),
    ),
    Claim(
        "Newton losses improve stochastic smoothing with more than 3 samples.",
        "section 4.2, table 3",
        "With 10 and 30 samples the mean of each variant is higher than the baseline’s.",
        both(
            within(better, SMOOTHED_LOSS, "hessian", "baseline"),
            within(better, SMOOTHED_LOSS + SMOOTHED_ALGORITHM, "fisher", "baseline"),
        ),
    ),
    Claim(
        "From 10 samples on, smoothing the algorithm beats smoothing the loss.",
        "section 4.2, table 3",
        "With 10 and 30 samples its baseline has the higher mean.",
        across(better, list(zip(SMOOTHED_ALGORITHM, SMOOTHED_LOSS, strict=True))),
    ),
    Claim(
        "With the Fenchel-Young loss the Hessian gains more than 2 points.",
        "section 4.2, table 3",
        "With 3, 10 or 30 samples its mean is more than 2 above the baseline’s.",
        within(better_by(2.0), FENCHEL_YOUNG, "hessian", "baseline"),
        "any",
    ),
    Claim(
        "With the Fenchel-Young loss the Fisher makes no difference.",
        "section 4.2, table 3",
        "With 3, 10 and 30 samples neither is significantly better than the other.",
        within(alike, FENCHEL_YOUNG, "fisher", "baseline"),
    ),
    Claim(
        "With few samples Fenchel-Young beats smoothing; with many it loses.",
        "section 4.2, table 3",
        "Its baseline has the higher mean with 3 samples, and that of smoothing with 30, for both kinds of smoothing.",
        both(
            across(better, [("fenchel-young-3", f"smoothed-{what}-3") for what in ("loss", "algorithm")]),
            across(better, [(f"smoothed-{what}-30", "fenchel-young-30") for what in ("loss", "algorithm")]),
        ),
    ),
)


SETTINGS_OF_GOAL = (*VARIANTS, "sample-normalized", "fisher-normalized", "hessian-normalized")  # in log space
GOAL_RULE = (
    f"A setting counts from {LEAST_SEEDS} seeds on. A column is reached when the mean of one setting that counts is at "
    "least the paper’s best, not reached when all six settings count and none does, and otherwise open."
)


def _untuned(names: Sequence[str], numerics: str = "") -> Parts:
    """`NormalizedDamping()` against the plain loss and the paper's λ, for every curvature that the paper has there."""
    return both(
        *(
            within(
                not_behind,
                [name for name in names if f"{name}-{curvature}" in paper_cells()],
                f"{curvature}-normalized{numerics}",
                f"baseline{numerics},{curvature}{numerics}",
            )
            for curvature in NEWTON
        )
    )


def _goal(averaged: bool) -> Parts:
    """In each column of table 1, the best of our settings in log space against the paper's best."""

    def parts(at: Setting) -> list[Part]:
        ours = {
            column: [at.figure(column, name, "stable", averaged=averaged) for name in SETTINGS_OF_GOAL]
            for column in columns("table1")
        }
        # The mean of figures with two digits can miss such a figure by its last bit.
        return [compare(column_title(name), ours[name], [papers_best(name)], better_by(-1e-9)) for name in ours]

    return parts


QUESTIONS = (
    Claim(
        "Computing the loss in log space, without curvature, does as well as the Newton loss.",
        "not in the paper",
        "In all eight cells the baseline in log space is at most one point below the better Newton loss in the "
        "paper’s numerics.",
        within(reaches, EIGHT, "baseline@stable", "hessian,fisher"),
    ),
    Claim(
        "Clipping the gradient’s norm at 1 does as well as the Newton loss.",
        "not in the paper",
        "In all eight cells the clipped baseline is at most one point below the better Newton loss, both in the "
        "paper’s numerics.",
        within(reaches, EIGHT, "clip", "hessian,fisher"),
    ),
    Claim(
        "Dividing by the gradients’ energy, one number per batch, does as well as the Fisher.",
        "not in the paper",
        "In all eight cells its mean is at most one point below the Fisher’s, both in the paper’s numerics.",
        within(reaches, EIGHT, "energy", "fisher"),
    ),
    Claim(
        "On top of the loss in log space, curvature still helps.",
        "not in the paper",
        "In all eight cells the better Newton loss in log space, with the paper’s λ, is significantly better than the "
        "baseline in log space (one-sided t-test at .05).",
        within(significant, EIGHT, "hessian@stable,fisher@stable", "baseline@stable"),
    ),
)
NO_TUNING = (
    "In every cell neither the plain loss nor the paper’s λ is significantly better than the same curvature with "
    "NormalizedDamping() (one-sided t-test at .05)."
)
UNTUNED_SORTING = Claim(
    "For sorting, a λ without tuning does as well as the paper’s, tuned cell by cell.",
    "not in the paper",
    NO_TUNING,
    _untuned(EIGHT, "@stable"),
)
UNTUNED_PATHS = Claim(
    "For shortest paths it does too.",
    "not in the paper",
    NO_TUNING,
    _untuned(columns("table2", "table3")),
)
GOAL = Claim(
    "In log space our best setting reaches the paper’s best figure in every column.",
    "our goal",
    f"In all nine columns of table 1, as trained. {GOAL_RULE}",
    _goal(averaged=False),
)
GOAL_AVERAGED = Claim(
    "With averaged weights it does too.",
    "beside our goal",
    "The same with averaged weights. The paper does not average weights, and any run can be averaged, the plain loss "
    "as well: this compares no methods, and does not count for the goal.",
    _goal(averaged=True),
)


def _time_verdict(index: Index, words: str, method: str, names: Sequence[str]) -> Verdict:
    """Whether a step takes as long as the plain loss's, by the runs of `newton-losses reproduce runtimes`."""
    minutes = {(cell.column, cell.variant): cell.paper[MINUTES][0] for cell in cells("runtimes") if cell.paper}
    parts = []
    for column, paper in ((column, time) for (column, variant), time in minutes.items() if variant == method):
        if not column.startswith(tuple(names)):
            continue
        name, ratio = column_title(column), _time_ratio(index, column, method)
        papers = f"the paper × {paper / minutes[column, 'baseline']:.2f}"
        known = Part(ratio <= SAME_TIME, f"{name} × {ratio:.2f} ({papers})") if ratio else None
        parts.append(known or Part(None, f"{name} (not run)"))
    rule = f"Every measured step takes at most {SAME_TIME} times as long as the plain loss’s on the same device."
    return Verdict(words, "section 4.4", rule, [judge("timed runs", parts)])


def _time_ratio(index: Index, column: str, method: str) -> float | None:
    """How many times as long as the plain loss's a step takes, in pairs of one seed and protocol on one device."""
    base, own = (
        {
            (one.protocol, record.environment.get("gpu") or record.environment.get("cpu"), record.seed): time
            for one in index.groups.get(f"{column}-{variant}-timed", [])
            for record in one.records
            if 0 < (time := record.milliseconds_per_step) < math.inf
        }
        for variant in ("baseline", method)
    )
    ratios = [own[key] / base[key] for key in own if key in base]
    return statistics.median(ratios) if ratios else None


def _convex_verdict(index: Index) -> Verdict:
    """The runs of `newton-losses reproduce cvxpy`, with the solver and with the known solution in its place."""
    judgements = []
    for key, title in (("", "cvxpylayers"), ("-exact", "known solution")):
        plain = {one.protocol: one for one in index.groups.get(f"relu-baseline{key}", [])}
        for fisher in index.groups.get(f"relu-fisher{key}", []):
            lower = plain[fisher.protocol].ahead_of(fisher, "loss") if fisher.protocol in plain else {}
            parts = [Part(lead > 0, f"seed {seed} by {lead:.3f}") for seed, lead in lower.items()]
            parts += [Part(None, "a further seed (not run)")] * (CONVEX_SEEDS - len(parts))
            judgements.append(judge(f"{title}, {int(fisher.protocol['batch_size'])} samples", parts))
    return Verdict(
        "With convex layers the Fisher lowers the loss on every seed.",
        "appendix, table on cvxpylayers",
        f"On each of at least {CONVEX_SEEDS} seeds the training loss after the last step is lower with the Fisher.",
        judgements or [judge("cvxpylayers", [])],
    )


def verdicts(found: Evidence) -> dict[str, list[Verdict]]:
    """All claims by subject."""
    sorting, paths, index = (found.full, found.short), (found.warcraft, found.terrain), found.index
    return {
        "Sorting": [claim.verdict(sorting) for claim in SORTING_CLAIMS],
        "Shortest paths": [claim.verdict(paths) for claim in PATHS_CLAIMS],
        "Time and convex layers": [
            _time_verdict(index, "A step with the Fisher takes as long as the baseline’s.", "fisher", [""]),
            _time_verdict(
                index,
                "For stochastic losses a step with the Hessian does too.",
                "hessian",
                ["smoothed-loss", "fenchel-young"],
            ),
            _convex_verdict(index),
        ],
        BEYOND: [
            *(claim.verdict(sorting) for claim in (*QUESTIONS, UNTUNED_SORTING)),
            UNTUNED_PATHS.verdict(paths),
            *(claim.verdict([found.full]) for claim in (GOAL, GOAL_AVERAGED)),
        ],
    }
