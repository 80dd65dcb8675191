"""`newton-losses info`: what is installed here, and which data is there."""

import json
from typing import Annotated

import typer

from ..data import data_root
from ..environment import environment
from ._data import presence
from ._output import spoken_errors


def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """Say what is installed here, which devices torch finds, and which data is there."""
    with spoken_errors(as_json):
        facts = environment()
        packages = facts.pop("packages")
        facts.pop("command")
        facts["data folder"] = str(data_root())
        found = {name: state for name, (_, state) in presence(None).items()}
    if as_json:
        typer.echo(json.dumps({**facts, "packages": packages, "data": found}))
        return
    for name, value in facts.items():
        typer.echo(f"{name:14} {'–' if value is None else value}")
    typer.echo("packages       " + ", ".join(f"{n} {v or 'missing'}" for n, v in packages.items()))
    for name, state in found.items():
        typer.echo(f"data {name:9} {state}")
