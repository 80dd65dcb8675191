"""Settings as words: `name=value`, or `--name value,value` for a grid, turned into what a configuration holds."""

import itertools
import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from newton_losses.errors import ArgumentError

from ..config import RunConfig
from ..settings import check_name, option

# By another name on the command line than in a configuration.
_SPELLINGS = {"samples": "num_samples", "a": "algorithm", "c": "curvature"}
# Settings of a run that a table or a grid sets itself: what is given here would be overruled without a word.
_OWN = "each run chooses it for its device. `newton-losses train` takes it."
_CHOSEN_ELSEWHERE = {
    "seed": "give --seeds, where 3 is how many, and 3, with a comma the seed 3 alone.",
    "device": "give --device.",
    "drops": "it follows from the epochs.",
    "graph": _OWN,
    "kernels": _OWN,
}
# Options of `train` that are no settings of a run.
_RESULTS = "give --results, the folder of all runs."
_OF_ONE_RUN = "`newton-losses train` has it; many runs at once are told of in lines, and lie in --results."
_NO_SETTINGS = {
    "at_once": "give --jobs, so many processes at once.",
    "out": _RESULTS,
    "o": _RESULTS,
    "overwrite": "a finished run stays; give another folder with --results, or remove the run's folder.",
    "json": _OF_ONE_RUN,
    "tensorboard": _OF_ONE_RUN,
}
# Settings that only some curvatures have.
_WITH_CURVATURE = ("fisher", "hessian", "energy")
_OF_CURVATURES = {"damping": _WITH_CURVATURE, "relative_damping": _WITH_CURVATURE, "spectrum": ("hessian",)}


def parse_settings(words: list[str]) -> dict[str, Any]:
    """`name=value` pairs; numbers, true, false and null become what they say, all else is text.

    >>> parse_settings(["batch_size=50", "data=digits", "relative-damping=0.5"])
    {'batch_size': 50, 'data': 'digits', 'relative_damping': 0.5}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise ArgumentError(f"--set {word}: a setting is written name=value, as in batch_size=50.")
        try:
            found[_name(name)] = json.loads(value)
        except ValueError:
            found[_name(name)] = value
        _check_free(_name(name), f"--set {word}")
    return found


def parse_grid(kind: type[RunConfig], words: list[str]) -> dict[str, list[Any]]:
    """`--name value,value …` as lists of values, each of the type that the setting has.

    >>> from newton_losses_bench.config import SortingConfig
    >>> parse_grid(SortingConfig, ["--damping", "0.1,10", "--algorithm=softsort", "--augment", "false,true"])
    {'damping': [0.1, 10.0], 'algorithm': ['softsort'], 'augment': [False, True]}
    """
    hints = get_type_hints(kind)
    grid: dict[str, list[Any]] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            raise ArgumentError(f"{word}: a setting is given as --name value, or --name value,value for several.")
        name, sign, text = word.lstrip("-").partition("=")
        name = _name(name)
        _check_free(name, word.partition("=")[0])
        check_name(kind, name)
        text = text if sign else next(rest, "")
        if not text:
            switch = f"Write {option(name)} true, or {option(name)} false,true for both."
            several = "Give one, or several with commas between them."
            raise ArgumentError(f"{word}: which values? {switch if hints[name] is bool else several}")
        grid[name] = [_value(name, part.strip(), hints[name]) for part in text.split(",")]
    return grid


def product(grid: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the last setting changing fastest.

    >>> list(product({"n": [5, 10], "damping": [1.0]}))
    [{'n': 5, 'damping': 1.0}, {'n': 10, 'damping': 1.0}]
    """
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def applicable(points: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The points of a grid, with settings of a curvature only where it is the point's, and a note on each left out.

    What then is the same is there once. A setting that no point takes stays, to be refused.

    >>> points, notes = applicable(list(product({"curvature": ["none", "fisher"], "damping": [1.0, 2.0]})))
    >>> points
    [{'curvature': 'none'}, {'curvature': 'fisher', 'damping': 1.0}, {'curvature': 'fisher', 'damping': 2.0}]
    """
    notes = []
    for name, curvatures in _OF_CURVATURES.items():
        takes = [point.get("curvature", "none") in curvatures for point in points]
        if any(name in point for point in points) and any(takes) and not all(takes):
            notes.append(f"{option(name)} goes to the runs that have one; the others are done without it, and once.")
            points = [
                point if taken else {other: value for other, value in point.items() if other != name}
                for point, taken in zip(points, takes, strict=True)
            ]
    return [point for place, point in enumerate(points) if point not in points[:place]], notes


def _check_free(name: str, word: str) -> None:
    for reasons in (_CHOSEN_ELSEWHERE, _NO_SETTINGS):
        if name in reasons:
            raise ArgumentError(f"{word}: {reasons[name]}")


def _name(word: str) -> str:
    name = word.replace("-", "_")
    return _SPELLINGS.get(name, name)


def _value(name: str, text: str, hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if text == "none" and str not in kinds:
        return None
    try:
        if bool in kinds:
            return {"true": True, "false": False}[text.lower()]
        for kind in (int, float):
            if kind in kinds:
                return kind(text)
    except (ValueError, KeyError):
        if str in kinds:  # as the damping, a number or auto
            return text
        wanted = "true or false" if bool in kinds else "a number"
        raise ArgumentError(f"--{name.replace('_', '-')} {text}: it has to be {wanted}.") from None
    return text
