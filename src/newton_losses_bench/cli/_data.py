"""`newton-losses data`: list, fetch, check and make the data sets."""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from newton_losses.errors import ArgumentError

from .. import data as sets
from ..settings import check_choice
from ._output import spoken_errors

data_app = typer.Typer(help="List, fetch, check and make the data sets.", no_args_is_help=True)

_ABOUT = {
    "digits": "1,797 handwritten digits of 8×8 pixels from scikit-learn, always there",
    "mnist": "70,000 handwritten digits of 28×28 pixels, can be fetched (11 MB)",
    "terrain": "generated maps with shortest paths, look-alikes of the Warcraft set, can be made",
    "warcraft": "12,000 maps with shortest paths, to be downloaded by hand (873 MB)",
}

Root = Annotated[
    str | None,
    typer.Option(
        "--root",
        "--data-root",
        help="Folder of the data. Default: $NEWTON_LOSSES_DATA, else the user's cache folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Size = Annotated[int, typer.Option(help="Cells along the side of a map.")]


def load(name: str, root: str | None, size: int = 12) -> tuple[int, ...]:
    """Read a data set, checksums included, and return the sizes of its three parts."""
    check_choice("data", name, _ABOUT, "data set")
    readers: dict[str, Callable[[], sets.Splits[sets.LabeledImages] | sets.Splits[sets.PathMaps]]] = {
        "digits": sets.Digits.splits,
        "mnist": lambda: sets.MNIST.splits(root),
        "terrain": lambda: sets.Terrain.splits(root, size),
        "warcraft": lambda: sets.Warcraft.splits(root),
    }
    return tuple(len(part) for part in readers[name]())


def presence(root: str | None) -> dict[str, tuple[str, str]]:
    """For each data set: what it is, and whether it is there."""
    return {name: (about, _state(name, root)) for name, about in _ABOUT.items()}


def _state(name: str, root: str | None) -> str:
    try:
        if name == "terrain":
            # Opening the maps reads no more than headers; the others are small, or rarely there.
            return f"there ({len(sets.Terrain(root, check=False))} training maps of 12×12)"
        if name == "warcraft":
            return f"there ({len(sets.Warcraft(root, check=False))} training maps)"
        load(name, root)
    except sets.DataNotFoundError:
        return "not there"
    except (sets.DataError, ImportError) as error:
        return f"cannot be used: {error}"
    return "there"


@data_app.command("list")
def list_sets(root: Root = None, as_json: Json = False) -> None:
    """List the data sets, and which are there."""
    found = presence(root)
    if as_json:
        typer.echo(json.dumps({name: {"about": about, "state": state} for name, (about, state) in found.items()}))
        return
    typer.echo(f"in {sets.data_root(root)}")
    for name, (about, state) in found.items():
        typer.echo(f"{name:9} {state:12} {about}")


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="mnist")], root: Root = None) -> None:
    """Download a data set; what is already there is not fetched again."""
    with spoken_errors():
        check_choice("data", name, _ABOUT, "data set")
        if name == "warcraft":
            sets.Warcraft(root)  # raises with where to get it, unless it is there
        elif name == "mnist":
            sets.MNIST.splits(root, download=True)
        elif name == "terrain":
            raise ArgumentError("terrain is not fetched but made: newton-losses data make terrain")
        typer.echo(f"{name}: there, in {sets.data_root(root)}" if name != "digits" else "digits: always there")


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="digits, mnist, terrain or warcraft")],
    root: Root = None,
    size: Size = 12,
) -> None:
    """Read a data set as a whole and compare its checksums."""
    with spoken_errors():
        train, validation, test = load(name, root, size)
        typer.echo(f"{name}: in order, {train} for training, {validation} for validation, {test} for testing")


@data_app.command()
def make(
    name: Annotated[str, typer.Argument(help="terrain")],
    root: Root = None,
    size: Size = 12,
    train: Annotated[int, typer.Option(help="Maps for training.")] = 10_000,
    test: Annotated[int, typer.Option(help="Maps for validation, and as many for testing.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the set that is there.")] = False,
) -> None:
    """Draw the maps of the look-alike set and keep them as files."""
    with spoken_errors():
        check_choice("data", name, _ABOUT, "data set")
        if name != "terrain":
            raise ArgumentError(f"{name} cannot be made, it is real data. Try: newton-losses data fetch {name}")
        total = train + 2 * test
        with typer.progressbar(length=total, label="drawing maps") as bar:
            folder = sets.terrain.make(
                root, size, (train, test, test), seed, overwrite, lambda done, _: bar.update(done - bar.pos)
            )
        typer.echo(f"terrain: {total} maps of {size}×{size} in {folder}")
