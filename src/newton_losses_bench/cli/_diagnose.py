"""`newton-losses diagnose`: the report on a user's own loss."""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import inspect
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import newton_losses
import newton_losses_bench
from newton_losses.curvature import Expandable, Loss
from newton_losses.diagnose import Report
from newton_losses.diagnose import diagnose as make_report
from newton_losses.errors import ArgumentError, NewtonLossesError

from ..settings import check_choice
from ._output import errors_as_sentences


def diagnose(
    loss: Annotated[str, typer.Argument(help="The loss, as package.module:name or file.py:name.", metavar="LOSS")],
    batch: Annotated[
        str,
        typer.Option(
            "--batch",
            "-b",
            help="Outputs and targets, the arguments of the loss: module:name or file.py:name of a tuple, or of a "
            "function that returns one; or a file that torch.save wrote one to.",
            metavar="FILE|NAME",
        ),
    ],
    reduction: Annotated[
        str | None,
        typer.Option(
            help="How the loss reduces over the batch: mean, sum or none. Needed if it returns a sum.", metavar="NAME"
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture to this file.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check a loss at outputs of your network, and say what a Newton loss would change.

    For example:

        newton-losses diagnose my_project.losses:ranking_loss --batch batch.pt
    """  # fmt: skip
    with errors_as_sentences(as_json):
        if plot is not None:
            importlib.import_module("matplotlib")  # better missed now than after the work
        function = _named(loss, "loss")
        if isinstance(function, type):
            with _code_of_the_user(f"{loss}, a class, made without arguments"):
                function = function()
        arguments = _arguments(batch)
        if reduction is not None:
            check_choice("reduction", reduction, ("mean", "sum", "none"))
        kind: Any = reduction
        progress = Progress(quiet=as_json)
        try:
            report = make_report(function, *arguments, reduction=kind, progress=progress)
        except NewtonLossesError:
            raise
        except Exception as error:
            _blame(loss, function, arguments, error, progress.stage)
            raise
        finally:
            progress.end()
        typer.echo(json.dumps(report.to_dict(), allow_nan=False) if as_json else str(report))
        if plot is not None:
            _draw(report, plot)


class Progress:
    """A line on stderr for anything that takes more than two seconds: what is measured, and the calls so far."""

    PATIENCE, PAUSE = 2.0, 0.5

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.stage, self.calls, self.told = quiet, "", 0, ""
        self.began = time.monotonic()
        self.is_over, self.turn = threading.Event(), threading.Lock()
        self.watch = threading.Thread(target=self._watch, daemon=True)
        if not quiet:
            self.watch.start()

    def __call__(self, stage: str, calls: int) -> None:
        self.stage, self.calls = stage, calls
        if not self.quiet and stage != self.told and time.monotonic() - self.began >= self.PATIENCE:
            self._tell()

    def _watch(self) -> None:
        """From a thread of its own: a single call, of a Hessian for example, can take longer than all others."""
        self.is_over.wait(self.PATIENCE)
        while not self.is_over.is_set():
            self._tell()
            self.is_over.wait(self.PAUSE)

    def _tell(self) -> None:
        with self.turn:
            line = f"measuring: {self.stage}, {self.calls} calls of the loss, {time.monotonic() - self.began:.0f} s"
            if sys.stderr.isatty():
                typer.echo(f"\r{line:79}", err=True, nl=False)
            elif self.stage != self.told:
                typer.echo(line, err=True)
            self.told = self.stage

    def end(self) -> None:
        """Clear the line for what comes."""
        self.is_over.set()
        if self.watch.is_alive():
            self.watch.join()
        if self.told and sys.stderr.isatty():
            typer.echo(f"\r{'':79}\r", err=True, nl=False)


def _blame(name: str, loss: Loss | Expandable, arguments: tuple[Any, ...], error: Exception, stage: str) -> None:
    """Raise a sentence if the loss also fails when it is called directly, or if the error came from its own code."""
    call = functools.partial(loss.expand, curvature="hessian") if isinstance(loss, Expandable) else loss
    shape = tuple(getattr(arguments[0], "shape", ()))
    targets = "1 target" if len(arguments) == 2 else f"{len(arguments) - 1} targets"
    with _code_of_the_user(f"{name}, called with outputs of shape {shape} and {targets}"):
        call(*arguments)
    with contextlib.suppress(TypeError):  # of built-in functions, which have no file
        own = inspect.getsourcefile(loss if inspect.isroutine(loss) else type(loss))
        if any(frame.filename == own for frame in traceback.extract_tb(error.__traceback__)):
            with _code_of_the_user(f"{name}, called with other outputs than yours (measuring: {stage})"):
                raise error


@contextlib.contextmanager
def _code_of_the_user(what: str) -> Iterator[None]:
    """Report an error in the user's code in a sentence, with the line that it came from."""
    try:
        yield
    except NewtonLossesError:
        raise
    except Exception as error:
        packages = (torch, newton_losses, newton_losses_bench)
        ours = ("<", *(str(Path(str(package.__file__)).parent) for package in packages))
        theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
        place = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
        message = ": ".join(filter(None, [what, type(error).__name__, str(error).rstrip(".")]))
        raise ArgumentError(f"{message}{place}.") from error


def _draw(report: Report, plot: Path) -> None:
    try:
        report.plot(plot)
    except OSError as error:
        raise ArgumentError(f"--plot {plot}: could not be written ({error.strerror or error}).") from error
    except ValueError as error:  # matplotlib goes by the name, and says which it knows
        raise ArgumentError(f"--plot {plot}: {error}.") from error


def _arguments(batch: str) -> tuple[Any, ...]:
    if ":" not in batch:
        if not Path(batch).is_file():
            raise ArgumentError(f"--batch {batch}: there is no such file. A name in a module is written module:name.")
        try:
            found = torch.load(batch, weights_only=True)
        except Exception as error:  # pickle, zip and torch have many ways to fail at what they did not write
            raise ArgumentError(
                f"--batch {batch}: torch.load cannot read it ({type(error).__name__}). It has to be a file that "
                "torch.save wrote a tuple of tensors to; a name in a module is written module:name."
            ) from error
    else:
        found = _named(batch, "batch")
        if callable(found):
            with _code_of_the_user(batch):
                found = found()
    if not isinstance(found, tuple | list) or not found:
        raise ArgumentError(
            f"--batch {batch}: this is a {type(found).__name__}; it has to be a tuple: outputs, then targets."
        )
    return tuple(found)


def _named(text: str, what: str) -> Any:
    """What `module:name` or `file.py:name` stands for."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise ArgumentError(f"{what} {text}: write package.module:name or file.py:name.")
    # As for any script: modules of the folder that the command is called in can be imported.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with _code_of_the_user(text):
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [one for one in vars(module) if not one.startswith("_")], n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise ArgumentError(f"{what} {text}: {place} has no {name}.{guess}")
    return getattr(module, name)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}.")
    # One module for a loss and a batch of the same file, so that it runs once; files of one name have one each.
    name = str(path.resolve())
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]  # half of a module, as an import does it
            raise
    return sys.modules[name]
