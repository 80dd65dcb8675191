"""From a configuration to its data and its task. The data of runs with the same is read once."""

from pathlib import Path
from typing import Any

from torch import Tensor

from newton_losses.errors import ArgumentError

from ..config import PathsConfig, RunConfig, SortingConfig
from ..data import MNIST, Splits, Terrain, Warcraft, data_root, stamps
from .paths import PathsTask, load_maps
from .sorting import SortingTask, load_digits
from .task import Task


def make_task(config: RunConfig, splits: Splits[Any] | None = None) -> Task:
    """The task that a resolved configuration describes; `splits` is its data where that has been read already."""
    if isinstance(config, SortingConfig):
        return SortingTask(config, splits)
    if isinstance(config, PathsConfig):
        return PathsTask(config, splits)
    raise _no_task(config)


def load_data(config: RunConfig) -> Splits[Any]:
    """The data of a resolved configuration, in memory."""
    if isinstance(config, SortingConfig):
        return load_digits(config)
    if isinstance(config, PathsConfig):
        return load_maps(config)
    raise _no_task(config)


def _no_task(config: RunConfig) -> ArgumentError:
    return ArgumentError(f"There is no task for a {type(config).__name__}.")


class DataCache:
    """`make_task` for one run after another. The data of the last one stays in memory for the next.

    The next run uses it if everything that identifies data agrees: name, folder, the arguments of generated maps, and
    the sizes and times of the files. At most one set is kept, and none while another is read. Runs only read their
    data: a set that has been written to is read again.

    >>> from newton_losses_bench.config import SortingConfig
    >>> first = SortingConfig(algorithm="softsort", data="digits", device="cpu").resolved()
    >>> second = SortingConfig(algorithm="cauchy", data="digits", device="cpu", seed=1).resolved()
    >>> data = DataCache()
    >>> data.splits(first) is data.splits(second)
    True
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], Splits[Any]] | None = None

    def make_task(self, config: RunConfig) -> Task:
        """The task that a resolved configuration describes, on cached data where it is the same."""
        return make_task(config, self.splits(config))

    def splits(self, config: RunConfig) -> Splits[Any]:
        """The data of a resolved configuration."""
        key = _key(config)
        if self._kept is not None and self._kept[0] == (*key, _versions(self._kept[1])):
            return self._kept[1]
        self._kept = None
        splits = load_data(config)
        # Keyed by the files as they were before reading: if they change meanwhile, they are read again.
        self._kept = (*key, _versions(splits)), splits
        return splits


def _key(config: RunConfig) -> tuple[Any, ...]:
    """Everything that identifies the data of a run."""
    root = config.data_root
    drawn: tuple[int, ...] = ()
    places: list[Path] = []
    if config.data == "mnist":
        places = MNIST.places(root)
    elif config.data == "warcraft":
        places = Warcraft.places(root)
    elif isinstance(config, PathsConfig):
        places = Terrain.places(root, config.size)
        drawn = (config.size, config.train_maps, config.test_maps, config.data_seed)
    return config.data, data_root(root).absolute(), drawn, stamps(places)


def _versions(splits: Splits[Any]) -> tuple[int, ...]:
    """How often each of the tensors has been written to, as torch counts it."""
    return tuple(value._version for part in splits for value in vars(part).values() if isinstance(value, Tensor))
