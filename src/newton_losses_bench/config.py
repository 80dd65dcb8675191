"""What a run is: one frozen dataclass per task, whose fields carry the help and the choices of the command's options.

A person writes a configuration with holes in it; `resolved()` fills them with the paper's values (`paper.toml`), checks
everything, and returns the configuration that the run folder keeps. `identity` and `run_name` say which configurations
are the same run. How a single setting is spelled and checked is in `settings.py`.
"""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from newton_losses.errors import ArgumentError

from .machine import resolve_device
from .settings import (
    check_at_least,
    check_value,
    comparable,
    nearest_column,
    option,
    read_damping,
    renamed,
    setting,
    settings,
    usual_damping,
)

SORTING_ALGORITHMS = ("neuralsort", "softsort", "logistic", "cauchy")
PATHS_ALGORITHMS = ("bellman-ford", "smoothed-loss", "smoothed-algorithm", "fenchel-young")
# Numbers with more digits do not fit into 64 bits.
_MOST_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What all tasks have in common. `None` stands for the paper's value until `resolved()`."""

    task: ClassVar[str]

    algorithm: str = setting("the experiment", "The differentiable algorithm.", short="a")
    curvature: str = setting(
        "curvature",
        "none is the baseline, sample is each sample's own part of the Fisher, energy (a control) their mean square.",
        "none",
        choices=("none", "hessian", "fisher", "sample", "energy"),
        short="c",
    )
    damping: float | str | None = setting(
        "curvature",
        "λ: a number; running (auto), the library's default; normalized, by batch; or running:3. Default: the paper's.",
        None,
    )
    relative_damping: float | None = setting(
        "curvature", "λ as a multiple of the curvature's own scale, instead of --damping.", None
    )
    spectrum: str | None = setting(
        "curvature",
        "What becomes of negative eigenvalues of the Hessian. Default: raw; with running and normalized, absolute.",
        None,
        choices=("raw", "absolute", "clip"),
    )
    clip_norm: float | None = setting("training", "Clip the norm of the weights' gradient at this.", None)
    learning_rate: float | None = setting("training", "Learning rate of Adam. Default: the paper's.", None)
    batch_size: int = setting("training", "Samples per batch.", 100, protocol=True)
    eval_every: int = setting("training", "Steps between evaluations.", 1000, protocol=True)
    average: bool = setting("training", "Also evaluate an average of the last weights.", False, experiment=False)
    data: str = setting("data", "The data set.", "", protocol=True)
    data_root: str | None = setting(
        "data", "Folder of the data; see `newton-losses data list`.", None, experiment=False
    )
    seed: int = setting("training", "Seed of weights, batches, noise and evaluation sets.", 0, least=0)
    device: str = setting(
        "computing", "auto, cpu, cuda, or one of several GPUs, as in cuda:1.", "auto", experiment=False
    )
    precision: str = setting(
        "computing",
        "Precision of the convolutions; losses are float32.",
        "float32",
        choices=("float32", "tf32", "bf16"),
        protocol=True,
    )
    compile: bool = setting("computing", "Compile network and loss with torch.compile.", False, experiment=False)
    graph: bool = setting("computing", "On CUDA, capture the whole step as one graph.", True, experiment=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", renamed(self.damping, "auto", "running"))  # as in the library

    def resolved(self) -> Self:
        """This configuration with the paper's values in its holes, checked."""
        for one in settings(type(self)):
            check_value(one, getattr(self, one.name))
        damping = read_damping(self.damping)
        self._check_curvature()
        column = self._papers_column()
        if self.curvature != "none" and damping is None and self.relative_damping is None:
            damping = usual_damping(column, self.curvature)
        usual_spectrum = "absolute" if self.curvature == "hessian" and isinstance(damping, str) else "raw"
        device = resolve_device(self.device)
        return replace(
            self,
            damping=damping,
            spectrum=self.spectrum or usual_spectrum,
            learning_rate=_first(self.learning_rate, column["settings"]["learning_rate"]),
            device=device,
            graph=self.graph and device.startswith("cuda"),
        )

    def _papers_column(self) -> dict[str, Any]:
        return nearest_column(self.task, self.algorithm, n=getattr(self, "n", None), norm=getattr(self, "norm", None))

    def _check_curvature(self) -> None:
        if self.curvature == "none":
            for name in ("damping", "relative_damping"):
                if getattr(self, name) is not None:
                    raise ArgumentError(
                        f"{option(name)} is the damping of a curvature, and this run is a baseline without one. "
                        "Add --curvature fisher or --curvature hessian, or leave it out."
                    )
        if self.damping is not None and self.relative_damping is not None:
            raise ArgumentError("Give --damping or --relative-damping, not both: each says what λ is.")
        if self.spectrum not in (None, "raw") and self.curvature != "hessian":
            raise ArgumentError(
                f"--spectrum {self.spectrum} changes negative eigenvalues. Only --curvature hessian can have "
                "them: the empirical Fisher is a sum of squares."
            )

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        """Refuse settings that the chosen algorithm does not have, instead of ignoring them."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise ArgumentError(
                    f"{option(name)} does not go with --algorithm {self.algorithm}: it {reason}. Leave it out."
                )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, the task's name first."""
        # Not `asdict`, whose deep copies take longest of all when a report reads a thousand runs.
        return {"task": self.task, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; lists become tuples again, and unknown names are dropped."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored.items() if name in known
        }
        # Runs of the first version say "auto" where it is "normalized" now; no other has stored that word.
        return cls(**{**values, "damping": renamed(values.get("damping"), "auto", "normalized")})


@dataclass(frozen=True, kw_only=True)
class SortingConfig(RunConfig):
    """Ranking supervision: sets of `n` images of `digits` digits each, of which only the order is known.

    >>> config = SortingConfig(algorithm="softsort", curvature="fisher", n=10, device="cpu").resolved()
    >>> config.damping, config.temperature, config.learning_rate
    (100.0, 0.1, 0.001)
    """

    task: ClassVar[str] = "sorting"

    algorithm: str = setting(
        "the experiment",
        "The relaxation; logistic and cauchy are sorting networks.",
        choices=SORTING_ALGORITHMS,
        short="a",
    )
    batch_size: int = setting("training", "Sets per batch.", 100, protocol=True)
    data: str = setting(
        "data",
        "mnist; digits (8×8, no download); or glyphs, drawn for the demo, with its own network.",
        "mnist",
        choices=("mnist", "digits", "glyphs"),
        protocol=True,
    )
    n: int = setting("the experiment", "Numbers in a set.", 5, least=2, short="n")
    digits: int = setting("data", "Digits per number.", 4, protocol=True)
    augment: bool = setting("data", "Rotate and shift every training digit at random.", False, protocol=True)
    temperature: float | None = setting(
        "the experiment", "Temperature of neuralsort and softsort. Default: the paper's.", None
    )
    steepness: float | None = setting(
        "the experiment", "Inverse temperature of the sorting networks. Default: the paper's.", None
    )
    numerics: str = setting(
        "the experiment",
        "stable (log space), or reference (on probabilities, as in the paper).",
        "stable",
        choices=("stable", "reference"),
    )
    exchangeable: bool = setting(
        "the experiment", "Average the curvature over the order of a set's items, as the library does.", False
    )
    steps: int = setting("training", "Training steps.", 100_000, protocol=True)
    validation_sets: int = setting("data", "Fresh validation sets per evaluation.", 5_000, protocol=True)
    test_sets: int = setting("data", "Fresh test sets per evaluation.", 10_000, protocol=True)
    kernels: bool = setting(
        "computing", "With bf16 on a Hopper GPU, use this project's kernels.", True, experiment=False
    )

    def resolved(self) -> Self:
        config = super().resolved()
        if self.digits > _MOST_DIGITS:
            raise ArgumentError(f"--digits {self.digits}: expected at most {_MOST_DIGITS}.")
        paper = self._papers_column()["settings"]
        if "temperature" in paper:
            self._refuse(("steepness",), "has a --temperature")
            config = replace(config, temperature=_first(self.temperature, paper["temperature"]))
        else:
            self._refuse(("temperature",), "is a sorting network, which has a --steepness")
            config = replace(config, steepness=_first(self.steepness, paper["steepness"]))
        return replace(config, kernels=self.kernels and config.device.startswith("cuda") and self.precision == "bf16")

    def _check_curvature(self) -> None:
        super()._check_curvature()
        if self.exchangeable and self.curvature not in ("fisher", "hessian"):
            raise ArgumentError(
                f"--exchangeable averages a matrix over the order of a set's items, and --curvature {self.curvature} "
                "has none. Add --curvature fisher or --curvature hessian, or leave it out."
            )


@dataclass(frozen=True, kw_only=True)
class PathsConfig(RunConfig):
    """Shortest-path supervision: maps of which only the best path is known, never the costs.

    >>> PathsConfig(algorithm="smoothed-loss", curvature="hessian", device="cpu").resolved().drops
    (30, 40)
    """

    task: ClassVar[str] = "paths"

    algorithm: str = setting("the experiment", "The differentiable shortest path.", choices=PATHS_ALGORITHMS, short="a")
    data: str = setting(
        "data",
        "terrain (generated), or warcraft (its own files).",
        "terrain",
        choices=("terrain", "warcraft"),
        protocol=True,
    )
    batch_size: int = setting("training", "Maps per batch.", 70, protocol=True)
    eval_every: int = setting("training", "Epochs between evaluations.", 1, protocol=True)
    epochs: int = setting("training", "Passes over the training maps.", 50, protocol=True)
    drops: tuple[int, ...] | None = setting(
        "training", "After which epochs the learning rate falls tenfold.", None, protocol=True
    )
    size: int = setting("data", "Cells along a side of a generated map.", 12, protocol=True, least=2)
    train_maps: int = setting("data", "Generated training maps.", 10_000, protocol=True)
    test_maps: int = setting("data", "Generated validation maps, and as many test maps.", 1_000, protocol=True)
    data_seed: int = setting("data", "Seed of the generated maps.", 0, protocol=True, least=0)
    loop: str | None = setting(
        "the experiment", "Loop of bellman-ford: for (default) or while.", None, choices=("for", "while")
    )
    norm: str | None = setting(
        "the experiment", "Loss of bellman-ford: l1 (default) or l2 (squared).", None, choices=("l1", "l2")
    )
    beta: float | None = setting(
        "the experiment", "Inverse temperature of bellman-ford. Default: the paper's 10.", None
    )
    iterations: int | None = setting("the experiment", "Iterations of bellman-ford. Default: the paper's 18.", None)
    scale: float | None = setting(
        "the experiment", "Width of the noise of the other algorithms. Default: the paper's 0.1.", None
    )
    num_samples: int | None = setting("the experiment", "Noise samples of the other algorithms. Default: 10.", None)
    leave_one_out: bool = setting(
        "the experiment", "Subtract the mean of the other noise samples, not the paper's value without noise.", False
    )

    def resolved(self) -> Self:
        config = super().resolved()
        if self.data == "warcraft" and self.size != 12:
            raise ArgumentError(f"--size {self.size}: the warcraft maps have 12×12 cells. Other sizes are terrain's.")
        # After 30 and 40 of the paper's 50 epochs.
        drops = _first(self.drops, (self.epochs * 3 // 5, self.epochs * 4 // 5))
        config = replace(config, drops=tuple(sorted(drops)))
        paper = self._papers_column()["settings"]
        if self.algorithm == "bellman-ford":
            self._refuse(("scale", "num_samples", "leave_one_out"), "draws no noise")
            found = {name: _first(getattr(self, name), paper[name]) for name in ("loop", "norm", "beta", "iterations")}
        else:
            self._refuse(("loop", "norm", "beta", "iterations"), "solves exactly and smooths with noise")
            found = {"scale": _first(self.scale, paper["scale"]), "num_samples": _first(self.num_samples, 10)}
            if self.leave_one_out:
                check_at_least("num_samples", found["num_samples"], 2)
        return replace(config, **found)

    def _check_curvature(self) -> None:
        super()._check_curvature()
        if self.algorithm == "smoothed-algorithm" and self.curvature == "hessian":
            raise ArgumentError(
                "There is no Hessian for smoothing of an algorithm. Its output is a whole path of H·W cells, and "
                "the second derivative of H·W outputs by H·W costs has (H·W)³ entries, three million for 12×12, "
                "which no handful of samples can estimate. Take --curvature fisher, which needs first "
                "derivatives alone, or --algorithm smoothed-loss, which has a Hessian."
            )


@dataclass(frozen=True, kw_only=True)
class ConvexConfig(RunConfig):
    """Two ReLU layers as convex problems and a linear layer, fitted to random numbers in one batch.

    The algorithm "relu" solves min_z ‖z − Wx − b‖², z ≥ 0 with `cvxpylayers`; "relu-exact" takes the known
    solution max(Wx + b, 0) instead, which is faster and free of the solver's errors.

    >>> ConvexConfig(algorithm="relu", curvature="fisher").resolved().damping
    0.1
    """

    task: ClassVar[str] = "convex"

    algorithm: str = setting(
        "the experiment", "relu (solved), or relu-exact (in closed form).", choices=("relu", "relu-exact")
    )
    data: str = setting("data", "Random numbers.", "random", choices=("random",), protocol=True)
    batch_size: int = setting("training", "Samples of the one batch.", 300, protocol=True)
    eval_every: int = setting("training", "Steps between evaluations.", 10, protocol=True)
    steps: int = setting("training", "Training steps.", 50, protocol=True)
    device: str = setting("computing", "cpu, where the solver runs.", "cpu", experiment=False)

    def resolved(self) -> Self:
        if self.device not in ("cpu", "auto"):
            raise ArgumentError(f"--device {self.device}: the solver of convex layers runs on the CPU.")
        config = super().resolved()
        if self.average:
            raise ArgumentError("--average: there is no average of convex layers, of which only the training counts.")
        # There is nothing to compile or to capture, and no convolution to be less precise in.
        return replace(config, device="cpu", graph=False, compile=False, precision="float32")

    def _check_curvature(self) -> None:
        super()._check_curvature()
        if self.curvature not in ("none", "fisher"):
            sentence = "convex layers take the empirical Fisher. They have no second derivatives. Pass fisher, or none."
            raise ArgumentError(f"--curvature {self.curvature}: {sentence}")


def _first(given: Any, usual: Any) -> Any:
    return usual if given is None else given


CONFIGURATIONS: dict[str, type[RunConfig]] = {kind.task: kind for kind in (SortingConfig, PathsConfig, ConvexConfig)}
_SETTINGS = [one for kind in CONFIGURATIONS.values() for one in settings(kind)]
# Where the data lies, what it is computed on, what is only observed; and not the precision, which is an experiment's.
NOT_THE_EXPERIMENT = tuple(dict.fromkeys(one.name for one in _SETTINGS if not one.experiment))
# How long and on what an experiment is carried out, and not which experiment it is.
PROTOCOL = tuple(dict.fromkeys(one.name for one in _SETTINGS if one.protocol))


def configuration_class(task: object) -> type[RunConfig]:
    """The dataclass of a task's configurations."""
    if task not in CONFIGURATIONS:
        raise ArgumentError(f"There is no task {task!r}; there are {', '.join(CONFIGURATIONS)}.")
    return CONFIGURATIONS[str(task)]


def experiment(configuration: dict[str, Any]) -> dict[str, Any]:
    """The part of a stored configuration that makes the run what it is.

    A configuration written before a setting existed gets that setting's default, with which it ran; a setting that is
    not known here, as of somebody's own branch, makes an experiment of its own.
    """
    complete = configuration_class(configuration.get("task")).from_dict(configuration).to_dict()
    if isinstance(complete["damping"], str):
        complete["damping"] = read_damping(complete["damping"])
    found = {name: comparable(value) for name, value in complete.items() if name not in NOT_THE_EXPERIMENT}
    unknown = {name: value for name, value in configuration.items() if name not in complete and value}
    return found | {name: json.dumps(value, sort_keys=True) for name, value in unknown.items()}


def identity(configuration: dict[str, Any]) -> str:
    """A digest of `experiment`: equal for two records of one run, wherever they were made.

    >>> config = SortingConfig(algorithm="softsort", device="cpu").resolved().to_dict()
    >>> identity(config) == identity({**config, "device": "cuda", "compile": True})
    True
    >>> identity(config) == identity({**config, "steps": 10_000})
    False
    """
    return hashlib.sha256(json.dumps(experiment(configuration), sort_keys=True).encode()).hexdigest()


def run_name(configuration: dict[str, Any]) -> str:
    """The name of a run's folder: readable, the same for the same run, another for any other.

    >>> run_name(SortingConfig(algorithm="softsort", curvature="fisher", device="cpu").resolved().to_dict())
    'softsort-n5-stable-fisher-100000-s0-09df049b'
    """
    found = experiment(configuration)
    details = [found.get(name) for name in ("numerics", "loop", "norm", "num_samples")]
    parts = [
        found["algorithm"],
        *([f"n{found['n']:g}"] if "n" in found else []),
        *(f"{value:g}" if isinstance(value, float) else value for value in details if value is not None),
        "baseline" if found["curvature"] == "none" else found["curvature"],
        *([f"clip{found['clip_norm']:g}"] if found.get("clip_norm") is not None else []),
        f"{found['epochs']:g}e" if "epochs" in found else f"{found['steps']:g}",
        f"s{found['seed']:g}",
        identity(configuration)[:8],
    ]
    return "-".join(parts)
