"""The commands put together."""

from typing import Annotated

import typer

from newton_losses import __version__

from ._data import data_app
from ._demo import demo
from ._diagnose import diagnose
from ._info import info
from ._pack import pack
from ._report import report
from ._reproduce import reproduce
from ._sweep import sweep_app
from ._train import train_app

app = typer.Typer(
    help="Newton losses: train networks on losses that are hard to optimise, with the loss's own curvature.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
app.add_typer(train_app, name="train")
app.add_typer(sweep_app, name="sweep")
app.add_typer(data_app, name="data")
app.command()(reproduce)
app.command()(diagnose)
app.command()(demo)
app.command()(report)
app.command()(pack)
app.command()(info)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"newton-losses {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Everything that concerns all commands."""
