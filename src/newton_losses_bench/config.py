"""What a run is: two frozen dataclasses, one a task. How a single setting is checked is in `checks.py`.

A configuration is written by a person with holes in it; `resolved()` fills them with the paper's values,
checks everything and returns the configuration that the run folder keeps.
"""

import difflib
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self, get_type_hints

from newton_losses.errors import ArgumentError

from . import defaults
from .checks import check_at_least, check_choice, check_kind, check_positive, option, read_damping
from .device import resolve_device

# Larger numbers do not fit into 64 bits.
_MOST_DIGITS = 18


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What both tasks have in common. `None` stands for the paper's value until `resolved()`.

    `device`, `precision`, `compile` and `graph` say how the step is computed; they are a part of the
    configuration because they can change the last digits of a result. `average` has a mean of the weights
    evaluated as well, and changes nothing else.
    """

    task: ClassVar[str]
    algorithms: ClassVar[tuple[str, ...]]
    sources: ClassVar[tuple[str, ...]]

    algorithm: str
    curvature: str = "none"
    damping: float | str | None = None
    relative_damping: float | None = None
    spectrum: str | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    batch_size: int = 100
    eval_every: int = 1000
    average: bool = False
    data: str = ""
    data_root: str | None = None
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False
    graph: bool = True

    def resolved(self) -> Self:
        """This configuration with the paper's values in its holes, checked."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            check_kind(field.name, getattr(self, field.name), hints[field.name])
        check_choice("algorithm", self.algorithm, self.algorithms)
        check_choice("data", self.data, self.sources)
        check_choice("curvature", self.curvature, defaults.CURVATURES)
        if self.spectrum is not None:
            check_choice("spectrum", self.spectrum, defaults.SPECTRA)
        check_choice("precision", self.precision, defaults.PRECISIONS)
        self._check_curvature()
        for name, least in (("batch_size", 1), ("eval_every", 1), ("seed", 0)):
            check_at_least(name, getattr(self, name), least)
        for name in ("learning_rate", "clip_norm", "relative_damping"):
            check_positive(name, getattr(self, name))
        damping = read_damping(self.damping)
        if self.curvature != "none" and damping is None and self.relative_damping is None:
            damping = self._default_damping()
        rate = self._default_learning_rate() if self.learning_rate is None else self.learning_rate
        device = resolve_device(self.device)
        graph = self.graph and device.startswith("cuda")
        by_itself = "absolute" if self.curvature == "hessian" and isinstance(damping, str) else "raw"
        spectrum = self.spectrum or by_itself
        return replace(self, damping=damping, spectrum=spectrum, learning_rate=rate, device=device, graph=graph)

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

    def _default_damping(self) -> float:
        raise NotImplementedError

    def _kind_of_damping(self) -> str:
        # The energy is on the scale of the empirical Fisher: its mean eigenvalue.
        return "fisher" if self.curvature == "energy" else self.curvature

    def _default_learning_rate(self) -> float:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, the task's name first."""
        return {"task": self.task, **asdict(self)}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; lists become tuples again."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored.items() if name in known
        }
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class SortingConfig(RunConfig):
    """Ranking supervision: sets of `n` images of `digits` digits each, of which only the order is known.

    `kernels`: with bf16 on CUDA, run the convolutions through this project's kernels.

    >>> config = SortingConfig(algorithm="softsort", curvature="fisher", n=10, device="cpu").resolved()
    >>> config.damping, config.temperature, config.learning_rate
    (100.0, 0.1, 0.001)
    """

    task: ClassVar[str] = "sorting"
    algorithms: ClassVar[tuple[str, ...]] = defaults.SORTING_ALGORITHMS
    sources: ClassVar[tuple[str, ...]] = defaults.SORTING_DATA

    data: str = "mnist"
    n: int = 5
    digits: int = 4
    augment: bool = False
    temperature: float | None = None
    steepness: float | None = None
    numerics: str = "stable"
    steps: int = 100_000
    validation_sets: int = 5_000
    test_sets: int = 10_000
    kernels: bool = True

    def resolved(self) -> Self:
        config = super().resolved()
        config = replace(config, kernels=self.kernels and config.device.startswith("cuda") and self.precision == "bf16")
        check_choice("numerics", self.numerics, defaults.NUMERICS)
        check_at_least("n", self.n, 2)
        for name in ("digits", "steps", "validation_sets", "test_sets"):
            check_at_least(name, getattr(self, name), 1)
        if self.digits > _MOST_DIGITS:
            raise ArgumentError(f"--digits {self.digits}: it has to be at most {_MOST_DIGITS}.")
        check_positive("temperature", self.temperature)
        check_positive("steepness", self.steepness)
        if self.algorithm in defaults.TEMPERATURE:
            refuse(self, ("steepness",), "has a --temperature")
            found = defaults.TEMPERATURE[self.algorithm] if self.temperature is None else self.temperature
            return replace(config, temperature=found)
        refuse(self, ("temperature",), "is a sorting network, which has a --steepness")
        found = defaults.STEEPNESS[self.algorithm, self._paper_length()] if self.steepness is None else self.steepness
        return replace(config, steepness=found)

    def _paper_length(self) -> int:
        return min(defaults.SORTING_LENGTHS, key=lambda length: abs(length - self.n))

    def _default_damping(self) -> float:
        return defaults.SORTING_DAMPING[self.algorithm, self._kind_of_damping(), self._paper_length()]

    def _default_learning_rate(self) -> float:
        return defaults.SORTING_LEARNING_RATE


@dataclass(frozen=True, kw_only=True)
class PathsConfig(RunConfig):
    """Shortest-path supervision: maps of which only the best path is known, never the costs.

    >>> PathsConfig(algorithm="smoothed-loss", curvature="hessian", device="cpu").resolved().drops
    (30, 40)
    """

    task: ClassVar[str] = "paths"
    algorithms: ClassVar[tuple[str, ...]] = defaults.PATHS_ALGORITHMS
    sources: ClassVar[tuple[str, ...]] = defaults.PATHS_DATA

    data: str = "terrain"
    batch_size: int = 70
    eval_every: int = 1
    epochs: int = 50
    drops: tuple[int, ...] | None = None
    size: int = 12
    train_maps: int = 10_000
    test_maps: int = 1_000
    data_seed: int = 0
    loop: str | None = None
    norm: str | None = None
    beta: float | None = None
    iterations: int | None = None
    scale: float | None = None
    num_samples: int | None = None

    def resolved(self) -> Self:
        config = super().resolved()
        for name in ("epochs", "train_maps", "test_maps"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("size", self.size, 2)
        if self.data == "warcraft" and self.size != 12:
            raise ArgumentError(f"--size {self.size}: the warcraft maps have 12×12 cells. Other sizes are terrain's.")
        # Tenfold lower after three and after four fifths of the epochs: after 30 and 40 of the paper's 50.
        drops = (self.epochs * 3 // 5, self.epochs * 4 // 5) if self.drops is None else self.drops
        config = replace(config, drops=tuple(sorted(drops)))
        if self.algorithm == "bellman-ford":
            refuse(self, ("scale", "num_samples"), "draws no noise")
            return config._with_relaxation()
        refuse(self, ("loop", "norm", "beta", "iterations"), "solves exactly and smooths with noise")
        check_positive("scale", self.scale)
        samples = 10 if self.num_samples is None else self.num_samples
        check_at_least("num_samples", samples, 1)
        scale = defaults.NOISE_SCALE if self.scale is None else self.scale
        return replace(config, scale=scale, num_samples=samples)

    def _with_relaxation(self) -> Self:
        loop = self.loop or "for"
        norm = self.norm or "l1"
        check_choice("loop", loop, defaults.LOOPS)
        check_choice("norm", norm, defaults.NORMS)
        check_positive("beta", self.beta)
        iterations = defaults.BELLMAN_FORD_ITERATIONS if self.iterations is None else self.iterations
        check_at_least("iterations", iterations, 1)
        beta = defaults.BELLMAN_FORD_BETA if self.beta is None else self.beta
        return replace(self, loop=loop, norm=norm, beta=beta, iterations=iterations)

    def _check_curvature(self) -> None:
        super()._check_curvature()
        if self.algorithm == "smoothed-algorithm" and self.curvature == "hessian":
            raise ArgumentError(
                "There is no Hessian for smoothing of an algorithm. Its output is a whole path of H·W cells, and "
                "the second derivative of H·W outputs by H·W costs has (H·W)³ entries, three million for 12×12, "
                "which no handful of samples can estimate. Take --curvature fisher, which needs first "
                "derivatives alone, or --algorithm smoothed-loss, which has a Hessian."
            )

    def _default_damping(self) -> float:
        if self.algorithm == "bellman-ford":
            norm = self.norm or "l1"
            check_choice("norm", norm, defaults.NORMS)
            return defaults.BELLMAN_FORD_DAMPING[norm]
        return defaults.PATHS_DAMPING[self.algorithm, self._kind_of_damping()]

    def _default_learning_rate(self) -> float:
        return defaults.PATHS_LEARNING_RATE[self.algorithm]


def check_setting(kind: type[RunConfig], name: str) -> None:
    """Refuse a name that no setting of this kind of run has, naming the one that was probably meant.

    >>> check_setting(SortingConfig, "batchsize")
    Traceback (most recent call last):
    newton_losses.errors.ArgumentError: batchsize is no setting of a sorting run: did you mean batch_size?
    """
    known = [field.name for field in fields(kind)]
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
    raise ArgumentError(f"{name} is no setting of a {kind.task} run: {guess}")


def refuse(config: RunConfig, names: tuple[str, ...], reason: str) -> None:
    """Refuse settings that the chosen algorithm does not have, instead of ignoring them."""
    for name in names:
        if getattr(config, name) is not None:
            raise ArgumentError(
                f"{option(name)} does not go with --algorithm {config.algorithm}: it {reason}. Leave it out."
            )
