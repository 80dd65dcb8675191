"""One finished run, as its folder tells it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from newton_losses.errors import NewtonLossesError

from ..config import identity
from ..store import CONFIG, EVALUATIONS, RESULT, read_json

Figures = dict[str, float]


class UnreadableRecord(NewtonLossesError, ValueError):
    """A folder has a result that cannot be used; the message says why."""


@dataclass(frozen=True)
class RunRecord:
    """What a finished run leaves behind. Accuracies are in per cent.

    - `configuration`: every setting, resolved; `environment`: versions, commit, device, command.
    - `test`: the figures of the result; `reported`: the evaluation that they are of; `final`: the last one.
    - `averaged`: the test figures of the averaged weights, where the run had them evaluated.
    - `at_once`: how many runs of its process shared the device, and with it the time of a step.
    - `curve`: all evaluations, in order.
    """

    path: Path
    configuration: dict[str, Any]
    environment: dict[str, Any]
    test: Figures
    reported: dict[str, Any]
    final: dict[str, Any]
    steps: int
    seconds: float
    milliseconds_per_step: float
    curve: list[dict[str, Any]] = field(repr=False)
    identity: str = field(repr=False)
    at_once: int = 1
    averaged: Figures = field(default_factory=dict)

    @property
    def task(self) -> str:
        return str(self.configuration["task"])

    @property
    def algorithm(self) -> str:
        return str(self.configuration["algorithm"])

    @property
    def curvature(self) -> str:
        return str(self.configuration["curvature"])

    @property
    def numerics(self) -> str | None:
        """ "stable" or "reference"; only sorting has the choice."""
        return self.configuration.get("numerics")

    @property
    def seed(self) -> int:
        return int(self.configuration["seed"])


def read_record(folder: Path) -> RunRecord:
    """The run of a folder that has a result; `UnreadableRecord` if anything of it is not as it has to be."""
    try:
        result = read_json(folder / RESULT)
        stored = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
        configuration = _object(result["configuration"])
        return RunRecord(
            path=folder,
            configuration=configuration,
            environment=_object(stored.get("environment", {})),
            test={name: float(value) for name, value in result["test"].items()},
            reported=_object(result["reported"]),
            final=_object(result["final"]),
            steps=int(result["steps"]),
            seconds=float(result["seconds"]),
            milliseconds_per_step=float(result["milliseconds_per_step"]),
            at_once=int(result.get("at_once", 1)),
            averaged={name: float(value) for name, value in result.get("averaged", {}).get("test", {}).items()},
            curve=read_curve(folder),
            identity=identity(configuration),
        )
    except KeyError as error:
        raise UnreadableRecord(f"{folder / RESULT}: it has no {error}, and is left out.") from error
    except (NewtonLossesError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise UnreadableRecord(f"{folder}: left out, {error}") from error


def read_curve(folder: Path) -> list[dict[str, Any]]:
    """The evaluations that are there; a line that a crash has torn is left out."""
    file = folder / EVALUATIONS
    if not file.exists():
        return []
    curve = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            curve.append(record)
    return curve


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"there is a {type(found).__name__} where an object belongs")
    return found
