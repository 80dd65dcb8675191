"""The list of commands. Each is imported when it is called, so that `--help` and `--version` need neither torch nor
numpy, and completing the name of a command is fast."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import quiet_interrupts

_START, _PAPER = "Start here", "The paper's experiments"
# Name: panel, where the command is defined, what it does in one line.
COMMANDS = {
    "demo": (_START, "_demo:demo", "Train networks with and without a Newton loss, and write a page (2 min)."),
    "diagnose": (_START, "_diagnose:diagnose", "Examine a loss of your own: would a Newton loss help, and which?"),
    "info": (_START, "_data:info", "Show versions, devices and data, and what missing extras would add."),
    "train": (_PAPER, "_train:train_app", "Train on one of the paper's two benchmarks."),
    "sweep": (_PAPER, "_sweep:sweep_app", "Train every combination of several settings."),
    "reproduce": (_PAPER, "_reproduce:reproduce_app", "Run a table of the paper and print it next to the paper's."),
    "report": (_PAPER, "_report:report", "Write a page that compares finished runs with the paper."),
    "pack": (_PAPER, "_report:pack", "Pack finished runs into one file."),
    "data": (_PAPER, "_data:data_app", "List, download, check and generate the data sets."),
}


class _PlainHelp:
    """Help without `<bool>` beside flags and `<str>` beside arguments, and with paragraphs that fill the lines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.help is not None:
            self.help = _flowing(self.help)

    help: str | None

    def get_params(self, context: Any) -> list[Any]:
        found: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None  # its name and its help say what it is
        return found


class Command(_PlainHelp, TyperCommand):
    """A command."""


class Group(_PlainHelp, TyperGroup):
    """A command that has commands."""


class _LazyGroup(Group):
    """The commands of `COMMANDS`: listed from there, imported when called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, (panel, _, text) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=text, rich_help_panel=panel))

    def list_commands(self, context: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, context: Any, words: list[str]) -> Any:
        name, _, rest = super().resolve_command(context, words)
        return name, load_command(str(name)), rest


def load_command(name: str) -> Any:
    """The command itself, with what it needs imported."""
    module, _, attribute = COMMANDS[name][1].partition(":")
    try:
        with quiet_interrupts():
            found = getattr(importlib.import_module(f".{module}", __package__), attribute)
    except ModuleNotFoundError as error:
        typer.echo(f"newton-losses {name}: {error}. Try: pip install 'newton-losses[bench]'", err=True)
        raise typer.Exit(2) from None
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
        alone.command(cls=Command)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def new_group(text: str) -> typer.Typer:
    """A command whose commands are added to it, with the same look as the others."""
    return typer.Typer(help=text, cls=Group, no_args_is_help=True, rich_markup_mode="rich", add_completion=False)


def _flowing(text: str) -> str:
    """Paragraphs as one line each, which the terminal breaks; indented examples stay as they are."""
    paragraphs = [part if part.startswith("    ") else " ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(paragraphs)


app = typer.Typer(
    help="Newton losses: train networks on losses that are hard to optimise, with the loss's own curvature.",
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version() -> str:
    """The library's version, read from its source: importing the library would import torch."""
    found = importlib.util.find_spec("newton_losses")
    assert found is not None
    assert found.origin is not None
    match = re.search(r'^__version__ = "(.+)"$', Path(found.origin).read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "unknown"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"newton-losses {_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
