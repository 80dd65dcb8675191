"""What the paper does not ask: how much of its gain is curvature, and how much is numerics? And our own goal."""

from ._claims import Claim, each_cell, newton_figure
from ._goal import AVERAGING, STATES, standings
from ._rules import Part, Setting, reaches, significant


def _stable_reaches(at: Setting) -> list[Part]:
    return [
        reaches(title, at.figure(f"{name}-n{n}", "baseline", "stable"), newton_figure(at, name, n))
        for n, name, title in each_cell()
    ]


def _clipping_reaches(at: Setting) -> list[Part]:
    return [
        reaches(title, at.figure(f"{name}-n{n}", "clipped"), newton_figure(at, name, n))
        for n, name, title in each_cell()
    ]


def _energy_reaches(at: Setting) -> list[Part]:
    return [
        reaches(title, at.figure(f"{name}-n{n}", "energy"), at.figure(f"{name}-n{n}", "fisher"))
        for n, name, title in each_cell()
    ]


def _beyond_stable(at: Setting) -> list[Part]:
    return [
        significant(title, newton_figure(at, name, n, "stable"), at.figure(f"{name}-n{n}", "baseline", "stable"))
        for n, name, title in each_cell()
    ]


def _goal(at: Setting) -> list[Part]:
    """The paper's figures are of 100,000 steps, so that this is asked of full runs alone."""
    return [one.part for one in standings(at)]


def _goal_averaged(at: Setting) -> list[Part]:
    return [one.part for one in standings(at, averaged=True)]


GOAL = Claim(
    "In log space our best setting reaches the paper’s best figure in every column of table 1.",
    "our goal",
    "In all eight columns and at n = 15 the best mean in log space (baseline; Hessian and Fisher, each with the "
    f"paper’s λ and with damping auto) is at least the best that the paper has there. {STATES}",
    _goal,
)
GOAL_AVERAGED = Claim(
    "With averaged weights our best setting in log space reaches the paper’s best figure in every column of table 1.",
    "beside our goal",
    f"As for our goal, with the figures of the averaged weights alone. {AVERAGING}",
    _goal_averaged,
)
QUESTIONS = (
    Claim(
        "Computing the loss in log space alone, without any curvature, does as well as the Newton loss.",
        "not in the paper",
        "In all eight cells the baseline in log space is at most one point below the better Newton loss in the "
        "paper's numerics.",
        _stable_reaches,
    ),
    Claim(
        "Clipping the norm of the gradient at 1 does as well as the Newton loss.",
        "not in the paper",
        "In all eight cells the clipped baseline is at most one point below the better Newton loss, both in the "
        "paper's numerics.",
        _clipping_reaches,
    ),
    Claim(
        "Dividing by the gradients' energy, one number a batch, does as well as the empirical Fisher.",
        "not in the paper",
        "In all eight cells its mean is at most one point below the Fisher's, both in the paper's numerics.",
        _energy_reaches,
    ),
    Claim(
        "On top of the loss in log space, curvature still helps.",
        "not in the paper",
        "In all eight cells the better Newton loss in log space is significantly better than the baseline in log "
        "space (one-sided t-test at .05).",
        _beyond_stable,
    ),
)
