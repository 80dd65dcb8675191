"""How commands report: errors as one clear paragraph, results as text or JSON, progress as fits the reader."""

import contextlib
import json
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import Any

import typer

from newton_losses.errors import ArgumentError, NewtonLossesError

from ..machine import EXTRAS, Interrupted
from ..progress import LiveBar, PlainLines
from ..train import Progress

FAILED = 2
_OVERWRITE = "--overwrite"


@contextlib.contextmanager
def errors_as_sentences(as_json: bool = False, seed: int | None = None) -> Iterator[None]:
    """Turn every error into a sentence and an exit code; `seed` is that of the run under way, for JSON events."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
        raise
    except NewtonLossesError as error:
        _complain("error", "\n".join([str(error), *getattr(error, "__notes__", [])]), as_json, seed)
        raise typer.Exit(FAILED) from None
    except Interrupted as stop:
        text = f"stopped after step {stop.step}; everything is saved. {_what_resumes()}:\n  {typed_command()}"
        _complain("interrupted", text, as_json, seed, step=stop.step)
        raise typer.Exit(stop.exit_code) from None
    except KeyboardInterrupt:
        saved = "" if seed is None else f" The last checkpoint is intact. {_what_resumes()}."
        _complain("interrupted", f"stopped at once.{saved}", as_json, seed)
        raise typer.Exit(130) from None
    except ModuleNotFoundError as error:
        _complain("error", _missing(error), as_json, seed)
        raise typer.Exit(FAILED) from None
    except OSError as error:
        if error.filename is None:
            _complain("error", _unexpected(error), as_json, seed)
            raise typer.Exit(1) from None
        _complain("error", f"{error.filename}: {error.strerror}.", as_json, seed)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        _complain("error", _unexpected(error), as_json, seed)
        raise typer.Exit(1) from None


def refuse_torchrun() -> None:
    """Several processes would compete for the same run folders."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ArgumentError("torchrun starts this command several times: leave it out, and use `sweep --jobs` instead.")


def typed_command() -> str:
    """What was typed to start this, as far as a process can know, without what would delete the run to be resumed."""
    return shlex.join(["newton-losses", *(word for word in sys.argv[1:] if word != _OVERWRITE)])


def _what_resumes() -> str:
    return f"The same command {f'without {_OVERWRITE} ' if _OVERWRITE in sys.argv else ''}resumes"


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").split(".")[0]
    for extra, (modules, _) in EXTRAS.items():
        if package in modules:
            return f"this needs the package {package}: pip install 'newton-losses[{extra}]'"
    return _unexpected(error)


def _unexpected(error: Exception) -> str:
    """An error that nobody foresaw: what and where in a sentence, the rest in a file."""
    message = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = f"unexpected {message}{place}. This is a bug, here or in code that was called from here."
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", prefix="newton-losses-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
        text += f" Please report it with the traceback in {file.name}"
    return text


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
    return LiveBar() if sys.stdout.isatty() else PlainLines()
