"""How commands speak: errors as one clear paragraph, results as text or JSON, progress as fits the reader."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import typer

from newton_losses.errors import ArgumentError, NewtonLossesError

from ..progress import PlainLines, Progress
from ..ranks import EndedElsewhere, is_first_process, started_by_torchrun
from ..signals import Interrupted, others_of
from ..whose import seed_of

FAILED = 2
_OPTIONAL = ("sklearn", "matplotlib", "pooch", "tensorboard")


@contextlib.contextmanager
def spoken_errors(as_json: bool = False) -> Iterator[None]:
    """Turn the library's errors into a message and an exit code; a bug keeps its traceback."""
    try:
        with _told_ends_of_others(as_json):
            yield
    except NewtonLossesError as error:
        # Of several ranks, one says what is wrong with the settings that all have, or what it alone has met.
        if is_first_process() or not isinstance(error, ArgumentError | EndedElsewhere):
            _complain("error", "\n".join([str(error), *getattr(error, "__notes__", [])]), as_json, seed_of(error))
        raise typer.Exit(FAILED) from None
    except ModuleNotFoundError as error:
        # Only what the extra brings is imported this late; anything else missing is a bug and keeps its traceback.
        if (error.name or "").split(".")[0] not in _OPTIONAL:
            raise
        install = "pip install 'newton-losses[bench]'"
        _complain("error", f"this needs the package {error.name}, which the extra 'bench' brings: {install}", as_json)
        raise typer.Exit(FAILED) from None
    except Interrupted as stop:
        if is_first_process():
            _tell_interruption(stop, as_json)
        raise typer.Exit(stop.exit_code) from None
    except KeyboardInterrupt as stop:
        _complain("interrupted", "stopped; the last checkpoint is intact.", as_json, seed_of(stop))
        raise typer.Exit(130) from None


@contextlib.contextmanager
def _told_ends_of_others(as_json: bool) -> Iterator[None]:
    """Before one run's end is told, that of those that were interrupted with it.

    For a program, which wants an end for each; a person reads the steps of all in the notes of their runs.
    """
    try:
        yield
    except Exception as error:
        if as_json and is_first_process():
            for other in others_of(error):
                _tell_interruption(other, as_json)
        raise


def _tell_interruption(stop: Interrupted, as_json: bool) -> None:
    told = f"stopped after step {stop.step}; everything is saved. The same command goes on from there:"
    _complain("interrupted", f"{told}\n  {_command()}", as_json, seed_of(stop), step=stop.step)


def _command() -> str:
    """What was typed to start this, as far as a process can know."""
    if started_by_torchrun():
        start = ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "newton_losses"]
    else:
        start = ["newton-losses"]
    return shlex.join([*start, *sys.argv[1:]])


def _complain(event: str, text: str, as_json: bool, seed: int | None = None, **fields: Any) -> None:
    if as_json:
        emit({"event": event, "message": text, **({} if seed is None else {"seed": seed}), **fields})
    else:
        typer.echo(text if event == "interrupted" else f"error: {text}", err=True)


def emit(content: dict[str, Any]) -> None:
    """One JSON object as a line on the standard output."""
    print(json.dumps(content, ensure_ascii=False), flush=True)


def choose_progress() -> Progress:
    """A live bar for a person at a terminal, plain lines for a pipe."""
    if sys.stdout.isatty():
        from ..live import LiveBar

        return LiveBar()
    return PlainLines()
