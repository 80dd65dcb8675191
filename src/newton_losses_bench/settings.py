"""A single setting of a run: what it means, how it is spelled on the command line, and which values it takes.

A configuration declares its fields with `setting(...)`; `settings(kind)` lists them, and the command makes its options
from that list. Which settings a run has, and which go together, is in `config.py`. What the paper sets, its λ and its
figures are read from `paper.toml`: no number of the paper is kept anywhere else.
"""

import difflib
import functools
import math
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from newton_losses.errors import ArgumentError

Topic = Literal["the experiment", "curvature", "training", "data", "computing"]
TOPICS: tuple[Topic, ...] = get_args(Topic)
# A column of one of the paper's tables: its settings, and λ and figures for each variant.
Column = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A field of a configuration, as its options and the store see it.

    - `type` is the annotation of the field; `default` is `dataclasses.MISSING` for a field that must be given.
    - `help` is one sentence for `--help`; `choices` are the values of a text, empty where any value may be right.
    - `topic` is the section of `--help`.
    - `experiment`: whether two runs that differ in it are two experiments. `False` for how and where it is computed.
    - `least` is the smallest whole number that it takes. Numbers that are not whole are positive.
    - `protocol`: whether it says how long and on what data an experiment is carried out, and not which one it is.
    - `option` is the long option, `short` the letter of the short one, or "".
    """

    name: str
    type: Any
    default: Any
    help: str
    choices: tuple[str, ...]
    topic: Topic
    experiment: bool
    protocol: bool
    least: int
    option: str
    short: str

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of its values; `None` is not among them."""
        found = get_args(self.type) if isinstance(self.type, UnionType) else (self.type,)
        return tuple(kind for kind in found if kind is not NoneType)


def setting(
    topic: Topic,
    help: str,
    default: Any = MISSING,
    *,
    choices: tuple[str, ...] = (),
    experiment: bool = True,
    protocol: bool = False,
    least: int = 1,
    short: str = "",
) -> Any:
    """A dataclass field that carries what `Setting` says about it."""
    about = {"help": help, "topic": topic, "choices": choices, "short": short, "least": least}
    return field(default=default, metadata={**about, "experiment": experiment, "protocol": protocol})


def settings(kind: type[Any]) -> list[Setting]:
    """The settings of a kind of run, in the order of its fields.

    >>> from newton_losses_bench.config import PathsConfig
    >>> found = {one.name: one for one in settings(PathsConfig)}
    >>> found["loop"].choices, found["num_samples"].option, found["epochs"].default
    (('for', 'while'), '--samples', 50)
    """
    hints = get_type_hints(kind)
    return [
        Setting(name=one.name, type=hints[one.name], default=one.default, option=option(one.name), **one.metadata)
        for one in fields(kind)
    ]


def option(name: str) -> str:
    """The option of the command that sets a field.

    >>> option("clip_norm")
    '--clip-norm'
    """
    return "--samples" if name == "num_samples" else "--" + name.replace("_", "-")


def check_name(kind: type[Any], name: str) -> None:
    """Refuse a name that is not a setting of this kind of run, naming the one that was probably meant.

    >>> from newton_losses_bench.config import SortingConfig
    >>> check_name(SortingConfig, "batchsize")
    Traceback (most recent call last):
    newton_losses.errors.ArgumentError: batchsize is not a setting of a sorting run: did you mean batch_size?
    """
    known = [one.name for one in fields(kind)]
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
    raise ArgumentError(f"{name} is not a setting of a {kind.task} run: {guess}")


def check_choice(name: str, value: str, choices: Iterable[str], words: str | None = None) -> None:
    """Refuse a value that is not one of the choices, naming the one that was probably meant.

    `words` stand before the value where it is not that of an option.

    >>> check_choice("loop", "whlie", ("for", "while"))
    Traceback (most recent call last):
    newton_losses.errors.ArgumentError: --loop whlie: did you mean while? Expected one of for, while.
    """
    choices = tuple(choices)
    if value in choices:
        return
    wanted = str(value).lower().replace("_", "-")
    near = difflib.get_close_matches(wanted, choices, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? Expected" if near else "expected"
    raise ArgumentError(f"{words or option(name)} {value}: {guess} one of {', '.join(choices)}.")


# What to call the values of a type.
NAMES_OF_TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[int, ...]: "a tuple of whole numbers",
}


def check_value(one: Setting, value: Any) -> None:
    """Refuse a value that is not of a setting's type or beyond its bounds; a whole number passes for a number.

    >>> from newton_losses_bench.config import SortingConfig
    >>> found = {one.name: one for one in settings(SortingConfig)}
    >>> check_value(found["batch_size"], "x")
    Traceback (most recent call last):
    newton_losses.errors.ArgumentError: --batch-size x: expected a whole number.
    """
    if value is None and isinstance(one.type, UnionType):
        return
    words = [word for kind, word in NAMES_OF_TYPES.items() if kind in one.kinds]
    if not any(_is_of_type(value, kind) for kind in one.kinds):
        # NumPy's whole numbers print like Python's: name their type.
        is_plain = value is None or type(value) in (*NAMES_OF_TYPES, tuple, list)
        shown = value if is_plain else f"{value} ({type(value).__name__})"
        raise ArgumentError(f"{one.option} {shown}: expected {' or '.join(words)}.")
    if one.choices:
        check_choice(one.name, value, one.choices)
    elif int in one.kinds:
        check_at_least(one.name, value, one.least)
    elif one.kinds == (float,) and not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{one.option} {value}: expected a positive number.")


def _is_of_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and all(_is_of_type(one, get_args(kind)[0]) for one in value)
    # To Python, true and false are whole numbers.
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below `least`."""
    if value < least:
        raise ArgumentError(f"{option(name)} {value}: expected at least {least}.")


# Dampings that are rules of the library's, by their names in a configuration.
RULES = ("running", "normalized")


def read_damping(damping: float | str | None) -> float | str | None:
    """The one spelling of a damping: a number, "running", "normalized", or one of these with ":FACTOR" that is not 1.

    "running" has the scale of the run, as the library's default; "normalized" takes that of each batch on its own.
    Numbers may come as text. `None` was not given and passes.

    >>> read_damping("10"), read_damping("normalized:0.30"), read_damping("running:1")
    (10.0, 'normalized:0.3', 'running')
    """
    if damping is None:
        return None
    name, _, factor = str(damping).partition(":")
    try:
        number = float(factor or 1) if name in RULES else float(damping)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ArgumentError(
            f"--damping {damping}: expected a positive number, running (or auto), normalized, or RULE:FACTOR."
        )
    if name not in RULES:
        return number
    return name if number == 1 else f"{name}:{str(number).removesuffix('.0')}"


def renamed(damping: float | str | None, old: str, new: str) -> float | str | None:
    """A damping with another name for its rule, if it has the old one.

    >>> renamed("auto:3", "auto", "running"), renamed(3.0, "auto", "running")
    ('running:3', 3.0)
    """
    is_old = isinstance(damping, str) and damping.partition(":")[0] == old
    return f"{new}{str(damping).removeprefix(old)}" if is_old else damping


def rule_and_factor(damping: str) -> tuple[str, float]:
    """The name and the factor of a damping such as "running" or "normalized:FACTOR".

    >>> rule_and_factor("running"), rule_and_factor("normalized:10")
    (('running', 1.0), ('normalized', 10.0))
    """
    name, _, factor = str(read_damping(damping)).partition(":")
    return name, float(factor or 1)


def comparable(value: Any) -> Any:
    """10 and 10.0 are the same setting, and so are a tuple and the list that JSON makes of it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, tuple | list):
        return tuple(comparable(item) for item in value)
    return value


# What the paper sets


@functools.cache
def read_paper() -> dict[str, Any]:
    """All of `paper.toml`. It is shared: do not change it."""
    with (resources.files(__package__) / "paper.toml").open("rb") as file:
        return tomllib.load(file)


def paper_protocol(task: str) -> dict[str, Any]:
    """How long the paper trains, on how large batches, with how many seeds.

    >>> paper_protocol("paths")
    {'data': 'warcraft', 'epochs': 50, 'batch_size': 70, 'seeds': 10}
    """
    return dict(read_paper()["protocol"][task])


def nearest_column(task: str, algorithm: str, n: int | None = None, norm: str | None = None) -> Column:
    """The column whose settings an experiment takes: its algorithm's, with its norm, at the nearest length of sets.

    Without a norm, and for other algorithms than Bellman-Ford, it is the first, that of a for loop and the L₁ norm.

    >>> nearest_column("sorting", "softsort", n=7)["fisher"]["damping"]  # the paper's for n = 5
    10.0
    """
    if task == "convex":
        convex = read_paper()["convex"]
        return {"settings": convex["settings"], "fisher": {"damping": convex["damping"]}}
    columns = [
        column
        for column in read_paper()["column"]
        if (column["settings"]["task"], column["settings"]["algorithm"]) == (task, algorithm)
        and norm in (None, column["settings"].get("norm", norm))
    ]
    if not columns:
        raise ArgumentError(
            f"--algorithm {algorithm} has no [[column]] in paper.toml, where its usual settings would be. Add one, "
            'with table = "ours".'
        )
    return min(columns, key=lambda column: abs(column["settings"].get("n", 0) - (n or 0)))


def usual_damping(column: Column, curvature: str) -> float:
    """λ of a column for a curvature: the paper's, or that of the empirical Fisher where it has none.

    It has no Hessian for Bellman-Ford, which was too expensive there, and no control by the energy of the gradients,
    which is the mean eigenvalue of the empirical Fisher and so on its scale.
    """
    return float(column[curvature if curvature in column else "fisher"]["damping"])
