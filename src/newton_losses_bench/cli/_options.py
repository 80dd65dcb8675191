"""Options: those of a run, made from the fields of its configuration, and those that several commands share.

A configuration says what a setting is called, what it means, which values it has and to which topic it belongs
(`newton_losses_bench.settings`). Here it becomes an option: one value for `train`, several with commas for `sweep`, and
for `reproduce` one that is left alone unless given.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from newton_losses.errors import ArgumentError

from ..config import RunConfig
from ..settings import NAMES_OF_TYPES, TOPICS, Setting, settings
from ._output import errors_as_sentences
from .app import Command

ONE, SEVERAL, CHANGES = "one", "several", "changes"
OUTPUT = "Output"
# Panels in the order of `--help`. The first, without a name, has the options that matter most.
_PANELS = (None, *(topic.capitalize() for topic in TOPICS), OUTPUT)


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option with its help, in a panel of `--help`; without one it stands among the first."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


Seed = Annotated[int | None, option("One run, with this seed.", "--seed", metavar="INT")]
Seeds = Annotated[
    str | None, option("Several runs: 3 means seeds 0, 1, 2; 4,7 or 4-7 name them.", "--seeds", metavar="SEEDS")
]
Device = Annotated[
    str,
    option(
        "auto, cpu, cuda (all GPUs in turn), or one of them, as in cuda:1. Default: auto.", "--device", metavar="NAME"
    ),
]
Jobs = Annotated[
    int,
    option(
        "Runs at once, each in a process of its own; with --ray, runs at once per GPU. Default: 1.",
        *("--jobs", "-j"),
        metavar="INT",
    ),
]
Results = Annotated[
    Path, option("Folder of the results, one folder per run. Default: results.", "--results", "-r", metavar="FOLDER")
]
DryRun = Annotated[bool, option("Only print what would be run.", "--dry-run")]
Keep = Annotated[bool, option("Keep the weights and last checkpoint of every run.", "--keep-weights", panel=OUTPUT)]
Ray = Annotated[
    str | None,
    option("Address of a Ray cluster, or auto. Needs the extra 'ray'.", "--ray", panel="Computing", metavar="ADDRESS"),
]
Json = Annotated[bool, option("Print JSON instead of text.", "--json", panel=OUTPUT)]


@dataclass(frozen=True)
class RunningOptions:
    """What `sweep` and `reproduce` have in common: which seeds, and how and where the runs are computed."""

    seed: Seed = None
    seeds: Seeds = None
    device: Device = "auto"
    jobs: Jobs = 1
    ray: Ray = None
    results: Results = Path("results")
    keep_weights: Keep = False
    dry_run: DryRun = False


def add_command(
    group: typer.Typer,
    name: str,
    text: str,
    act: Callable[[Any, dict[str, Any]], None],
    *,
    own: type[Any],
    kind: type[RunConfig],
    mode: str,
    first: Sequence[str],
    without: Sequence[str] = (),
    defaults: dict[str, Any] | None = None,
) -> None:
    """Add a command that calls `act(options, settings)`, with errors as sentences.

    Its options are the fields of the dataclass `own`, and one for each setting of `kind`, without those of `without`.
    `settings` are those that were given, as lists where an option takes several. `first` names the options that come
    first in `--help`.
    """
    fields = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in inspect.signature(own).parameters.values()]
    usual = defaults or {}
    taken = {one.name: one for one in settings(kind) if one.name not in without}
    made = [_parameter(one, mode, one.name in first, usual.get(one.name, one.default)) for one in taken.values()]
    # Within a panel the order is that of the parameters; Python's sort keeps it.
    order = {name: place for place, name in enumerate(first)}
    found = sorted([*fields, *made], key=lambda one: (_panel(one), order.get(one.name, len(order))))

    def command(**given: Any) -> None:
        options = own(**{one.name: given.pop(one.name) for one in fields})
        with errors_as_sentences(getattr(options, "as_json", False)):
            values = {name: _read(taken[name], value, mode) for name, value in given.items() if value is not None}
            act(options, {**usual, **values})

    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in found}
    group.command(name, help=text, cls=Command)(command)


def _panel(parameter: inspect.Parameter) -> int:
    (info,) = parameter.annotation.__metadata__
    return _PANELS.index(info.rich_help_panel)


def _parameter(one: Setting, mode: str, is_first: bool, default: Any) -> inspect.Parameter:
    """The option of a setting: a flag, or a text that `_read` understands. It is `None` where it is not given."""
    takes_several = mode == SEVERAL and one.experiment
    is_flag = bool in one.kinds and not takes_several
    # A flag that is off by default needs no way to switch it off.
    names = [one.option + (one.option.replace("--", "/--no-", 1) if is_flag and default is True else "")]
    names += [f"-{one.short}"] if one.short else []
    info = option(
        _help(one, None if mode == CHANGES else default),
        *names,
        panel=None if is_first else one.topic.capitalize(),
        metavar="" if is_flag else _metavar(one) + (",…" if takes_several else ""),
        autocompletion=_completion(one.choices) if one.choices else None,
    )
    required = default is MISSING and mode != CHANGES
    annotation: Any = str if required else (bool if is_flag else str) | None
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, info],
        default=inspect.Parameter.empty if required else None,
    )


def _help(one: Setting, default: Any) -> str:
    """The help of a setting, with its choices and its default where they are not in it already."""
    text = one.help
    if not all(choice in text for choice in one.choices):
        text += f" One of {', '.join(one.choices)}."
    if default in (None, MISSING) or default is False or "efault" in text:
        return text
    return f"{text} Default: {'on' if default is True else default}."


def _metavar(one: Setting) -> str:
    words = {int: "INT", float: "NUMBER", str: "NAME" if one.choices else "TEXT", bool: "BOOL"}
    special = {"damping": "NUMBER|NAME", "data_root": "FOLDER", "device": "NAME"}
    return special.get(one.name) or words[one.kinds[0]]


def _completion(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + choice for choice in choices if choice.startswith(last)]

    return complete


def _read(one: Setting, given: Any, mode: str) -> Any:
    """What was given for a setting: a list of values, separated by commas, where it takes several, else one."""
    if isinstance(given, bool):
        return given
    if mode == SEVERAL and one.experiment:
        parts = [part.strip() for part in given.split(",")]
        if len(parts) > 1 and "" in parts:
            raise ArgumentError(f"{one.option} {given}: a value between commas is empty.")
        return [read_value(one, part) for part in parts]
    return read_value(one, given)


def read_value(one: Setting, text: str) -> Any:
    """A value of a setting's type; "none" is no value where there can be none.

    >>> from newton_losses_bench.config import SortingConfig
    >>> found = {one.name: one for one in settings(SortingConfig)}
    >>> read_value(found["damping"], "0.1"), read_value(found["damping"], "auto"), read_value(found["augment"], "true")
    (0.1, 'auto', True)
    """
    if text == "none" and str not in one.kinds:
        return None
    for kind, read in _READERS.items():
        if kind in one.kinds:
            try:
                return read(text)
            except (KeyError, ValueError):
                if str not in one.kinds:  # a damping may be a number or a rule
                    raise ArgumentError(f"{one.option} {text}: expected {NAMES_OF_TYPES[kind]}.") from None
    return text


# How a text is read, by the first of a setting's types that is here.
_READERS: dict[Any, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    float: float,
}


def chosen_seeds(seed: int | None, seeds: str | None, count: int = 1) -> list[int]:
    """The seeds of `--seed` or `--seeds`; without either, the first `count`.

    >>> chosen_seeds(None, "3"), chosen_seeds(None, "4-6,9"), chosen_seeds(5, None), chosen_seeds(None, None)
    ([0, 1, 2], [4, 5, 6, 9], [5], [0])
    """
    if seed is not None and seeds is not None:
        raise ArgumentError(f"--seed {seed} and --seeds {seeds}: give one of them.")
    if seed is not None:
        return [seed]
    if seeds is None:
        return list(range(count))
    if seeds.strip().isdecimal():
        if int(seeds) < 1:
            raise ArgumentError(f"--seeds {seeds}: this is how many, at least 1. For the seed {seeds} give --seed.")
        return list(range(int(seeds)))
    return _named_seeds(seeds)


def _named_seeds(text: str) -> list[int]:
    found: list[int] = []
    for part in text.strip().strip(",").split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ArgumentError(f"--seeds {text}: give how many, as in 3, or name them, as in 4,7 or 0-9.")
        if int(last or first) < int(first):
            raise ArgumentError(f"--seeds {text}: a range goes from the smaller to the larger, as in {last}-{first}.")
        found.extend(range(int(first), int(last or first) + 1))
    if len(set(found)) < len(found):
        raise ArgumentError(f"--seeds {text}: name each seed only once.")
    return found
