"""`newton-losses data`: list, download, check and generate the data sets. `newton-losses info`: what is here."""

import importlib.util
import json
from collections.abc import Callable
from typing import Annotated

import typer

from newton_losses.errors import ArgumentError

from .. import data as sets
from ..machine import EXTRAS, environment
from ..settings import check_choice
from ._options import option
from ._output import errors_as_sentences
from .app import Command, new_group

data_app = new_group("List, download, check and generate the data sets.")

_ABOUT = {
    "digits": "1,797 handwritten digits of 8×8 pixels, part of scikit-learn",
    "glyphs": "27,000 drawn digits of 10×10 pixels, those of `newton-losses demo`",
    "mnist": "70,000 handwritten digits of 28×28 pixels; `data fetch mnist` (11 MB)",
    "terrain": "generated maps with shortest paths, like Warcraft's; `data make terrain`",
    "warcraft": "12,000 maps with shortest paths; to be downloaded by hand (873 MB)",
}

Name = Annotated[
    str, typer.Argument(help=f"One of {', '.join(_ABOUT)}.", autocompletion=lambda: list(_ABOUT), metavar="NAME")
]
Root = Annotated[
    str | None,
    option(
        "Folder of the data. Default: $NEWTON_LOSSES_DATA, or the user's cache folder.",
        *("--root", "--data-root"),
        metavar="FOLDER",
    ),
]
Json = Annotated[bool, option("Print JSON instead of text.", "--json")]
Size = Annotated[int, option("Cells along a side of a map. Default: 12.", "--size", metavar="INT")]


@data_app.command("list", cls=Command)
def list_sets(root: Root = None, as_json: Json = False) -> None:
    """List the data sets, and which are available here."""
    with errors_as_sentences(as_json):
        found = {name: {"about": about, "state": _state(name, root)} for name, about in _ABOUT.items()}
        if as_json:
            typer.echo(json.dumps(found))
            return
        typer.echo(f"in {sets.data_root(root)}")
        for name, one in found.items():
            typer.echo(f"{name:9} {one['state']}\n          {one['about']}")


@data_app.command(cls=Command)
def fetch(name: Name, root: Root = None) -> None:
    """Download a data set, unless it is here already."""
    with errors_as_sentences():
        check_choice("data", name, _ABOUT, "data set")
        if name in ("digits", "glyphs"):
            typer.echo(f"{name}: nothing to download")
            return
        if name == "terrain":
            raise ArgumentError("terrain is generated, not downloaded: newton-losses data make terrain")
        if name == "warcraft":
            sets.Warcraft(root)  # raises with where to get it, unless it is here
        else:
            sets.MNIST.splits(root, download=True)
        typer.echo(f"{name}: in {sets.data_root(root)}")


@data_app.command(cls=Command)
def check(name: Name, root: Root = None, size: Size = 12) -> None:
    """Read a whole data set and verify its checksums."""
    with errors_as_sentences():
        train, validation, test = _load(name, root, size)
        typer.echo(f"{name}: in order, {train} for training, {validation} for validation, {test} for testing")


@data_app.command(cls=Command)
def make(
    name: Annotated[str, typer.Argument(help="terrain", autocompletion=lambda: ["terrain"], metavar="NAME")],
    root: Root = None,
    size: Size = 12,
    train: Annotated[int, option("Training maps. Default: 10000.", "--train", metavar="INT")] = 10_000,
    test: Annotated[
        int, option("Validation maps, and as many test maps. Default: 1000.", "--test", metavar="INT")
    ] = 1_000,
    seed: Annotated[int, option("Seed of the generator. Default: 0.", "--seed", metavar="INT")] = 0,
    overwrite: Annotated[bool, option("Replace an existing set.", "--overwrite")] = False,
) -> None:
    """Generate the terrain maps and keep them as files."""
    with errors_as_sentences():
        check_choice("data", name, _ABOUT, "data set")
        if name != "terrain":
            raise ArgumentError(f"{name} is real data and cannot be generated. Try: newton-losses data fetch {name}")
        total = train + 2 * test
        with typer.progressbar(length=total, label="drawing maps") as bar:
            folder = sets.terrain.make(root, size, (train, test, test), seed, overwrite, bar.update)
        typer.echo(f"terrain: {total} maps of {size}×{size} in {folder}")


def _load(name: str, root: str | None, size: int = 12) -> tuple[int, ...]:
    """Read a data set, checksums included, and return the sizes of its three parts."""
    check_choice("data", name, _ABOUT, "data set")
    readers: dict[str, Callable[[], sets.Splits[sets.LabeledImages] | sets.Splits[sets.PathMaps]]] = {
        "digits": sets.Digits.splits,
        "glyphs": sets.glyphs,
        "mnist": lambda: sets.MNIST.splits(root),
        "terrain": lambda: sets.Terrain.splits(root, size),
        "warcraft": lambda: sets.Warcraft.splits(root),
    }
    return tuple(len(part) for part in readers[name]())


def _state(name: str, root: str | None) -> str:
    try:
        if name == "terrain":
            # Opening maps reads only their headers; the other sets are small, or rarely here.
            return f"available ({len(sets.Terrain(root, check=False))} training maps of 12×12)"
        if name == "warcraft":
            return f"available ({len(sets.Warcraft(root, check=False))} training maps)"
        _load(name, root)
    except sets.DataNotFoundError:
        return "not here"
    except (sets.DataError, ImportError) as error:
        return f"cannot be used: {error}"
    return "available"


def info(as_json: Json = False) -> None:
    """Show versions, devices and data, and what missing extras would add."""
    with errors_as_sentences(as_json):
        facts = environment()
        packages = facts.pop("packages")
        facts.pop("command")
        facts["data folder"] = str(sets.data_root())
        data = {name: _state(name, None) for name in _ABOUT}
        missing = {
            extra: [name for name in modules if importlib.util.find_spec(name) is None]
            for extra, (modules, _) in EXTRAS.items()
        }
        if as_json:
            typer.echo(json.dumps({**facts, "packages": packages, "data": data, "missing": missing}))
            return
        for name, value in facts.items():
            typer.echo(f"{name:14} {'–' if value is None else value}")
        typer.echo(
            "packages       " + ", ".join(f"{name} {version or 'missing'}" for name, version in packages.items())
        )
        for name, state in data.items():
            typer.echo(f"data {name:9} {state}")
        for extra, names in missing.items():
            use = EXTRAS[extra][1]
            lacks = f"missing {', '.join(names)}; it adds {use}:\n{15 * ' '}pip install 'newton-losses[{extra}]'"
            typer.echo(f"extra {extra:8} {lacks if names else f'installed: {use}'}")
