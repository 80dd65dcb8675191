"""A run in words: what it is, how it goes, how it ended, and what to try where it ended badly."""

from dataclasses import fields, replace
from typing import Any

from .config import NOT_THE_EXPERIMENT, RunConfig
from .settings import option

Record = dict[str, Any]

# Not among the changes of a run: settings that its description always names, settings that do not affect training, and
# how long and how often, which progress shows.
_SHOWN_ELSEWHERE = (
    *("algorithm", "curvature", "damping", "relative_damping", "n", "numerics", "seed"),
    *NOT_THE_EXPERIMENT,
    *("steps", "epochs", "drops", "eval_every", "validation_sets", "test_sets"),
)


def describe(config: RunConfig) -> str:
    """A run in a few words.

    >>> from newton_losses_bench.config import SortingConfig
    >>> describe(SortingConfig(algorithm="softsort", curvature="fisher", device="cpu").resolved())
    'sorting n=5, softsort (stable), fisher λ=10, seed 0'
    """
    return f"{describe_setting(config)}, seed {config.seed}"


def describe_setting(config: RunConfig) -> str:
    """A run without its seed: loss, curvature, and every setting that is not at its default.

    >>> from newton_losses_bench.config import SortingConfig
    >>> describe_setting(SortingConfig(algorithm="softsort", temperature=0.5, clip_norm=1, device="cpu").resolved())
    'sorting n=5, softsort (stable), baseline, clip norm 1, temperature 0.5'
    """
    details = {"sorting": f" n={getattr(config, 'n', '')}"}.get(config.task, "")
    numerics = getattr(config, "numerics", None)
    algorithm = f"{config.algorithm} ({numerics})" if numerics else config.algorithm
    return ", ".join([f"{config.task}{details}", algorithm, _arm(config), *changes(config)])


def _arm(config: RunConfig) -> str:
    if config.curvature == "none":
        return "baseline"
    if config.relative_damping is not None:
        return f"{config.curvature} λ={config.relative_damping:g}·scale"
    return f"{config.curvature} λ={_plain(config.damping)}"


def changes(config: RunConfig) -> list[str]:
    """The settings of a resolved configuration that are not at their defaults."""
    shown = [one for one in fields(config) if one.name not in _SHOWN_ELSEWHERE]
    holes: dict[str, Any] = {one.name: one.default for one in shown}
    usual = replace(config, **{**holes, "device": "cpu"}).resolved()
    return [describe_value(name, value) for name in holes if (value := getattr(config, name)) != getattr(usual, name)]


def describe_value(name: str, value: Any) -> str:
    """A setting and its value.

    >>> describe_value("num_samples", 3), describe_value("augment", True)
    ('samples 3', 'augment')
    """
    words = option(name).removeprefix("--").replace("-", " ")
    return words if value is True else f"{words} {_plain(value)}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def figures(record: Record) -> str:
    """The accuracies of an evaluation.

    >>> figures({"validation": {"exact_match": 81.25}, "test": {"exact_match": 80.0}})
    'validation exact match 81.25 %  test exact match 80.00 %'
    """
    parts = []
    found = by_split(record)
    for split in ("validation", "test", "averaged test"):
        for name, value in list(found.get(split, {}).items())[:1]:
            parts.append(f"{split} {name.replace('_', ' ')} {value:.2f} %")
    return "  ".join(parts)


def by_split(record: Record) -> dict[str, dict[str, float]]:
    """All figures of an evaluation by split; those of averaged weights are splits of their own.

    >>> by_split({"step": 5, "test": {"exact_match": 80.0}, "averaged": {"test": {"exact_match": 81.0}}})
    {'test': {'exact_match': 80.0}, 'averaged test': {'exact_match': 81.0}}
    """
    own = {name: value for name, value in record.items() if isinstance(value, dict) and name != "averaged"}
    return {**own, **{f"averaged {name}": value for name, value in record.get("averaged", {}).items()}}


def outcome(result: Record, again: bool) -> str:
    """The line that ends a run."""
    values = _test_figures(result)
    start = "this run is finished" if again else "finished"
    return (
        f"{start}: test {values} (evaluation after step {result['reported']['step']} of {result['steps']}), "
        f"{_average(result)}"
        f"{duration(result['seconds'])}, {result['milliseconds_per_step']:.2f} ms per step, evaluations included"
        f"{_warning(result)}"
    )


def _average(result: Record) -> str:
    if "averaged" not in result:
        return ""
    return f"with averaged weights {_test_figures(result['averaged'])} (after step {result['averaged']['step']}), "


def _test_figures(record: Record) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f} %" for name, value in record["test"].items())


def _warning(result: Record) -> str:
    """What to try if the last steps had no finite loss."""
    steps = result.get("not_finite_steps", 0)
    if not steps:
        return ""
    settings = result["configuration"]
    tries = {
        "--numerics stable": settings.get("numerics") == "reference",
        "--spectrum absolute": settings["curvature"] == "hessian" and settings["spectrum"] == "raw",
        "a larger --damping": settings["curvature"] != "none",
        "--clip-norm 1": settings["clip_norm"] is None,
        "a smaller --learning-rate": True,
    }
    *most, last = [name for name, fits in tries.items() if fits]
    return (
        f". Towards the end, {steps} of {result['steps']} steps had no finite loss or skipped all their samples. "
        f"Try {', '.join(most)}{' or ' if most else ''}{last}"
    )


def number(value: float | None) -> str:
    """A loss as text; one that is not finite was stored as `None`."""
    return "not finite" if value is None else f"{value:.4g}"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "run"), count(3, "run")
    ('1 run', '3 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(3723)
    '1:02:03'
    """
    if seconds != seconds:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
