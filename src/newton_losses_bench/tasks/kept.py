"""The data of runs that one process does one after another: read once for all that have it in common."""

from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import PathsConfig, RunConfig
from ..data import MNIST, Splits, Terrain, Warcraft, data_root, stamps
from ._make import load_data, make_task
from ._task import Task


class KeptData:
    """`make_task` for one run after another. The data of the last one stays in memory for the next.

    It is the next one's if all that says which data it is agrees: name, folder, the arguments of generated maps, and
    size and times of the files. One set is kept at most, and none while another is read. Runs only read their data:
    a set that has been written to is read again.

    >>> from newton_losses_bench.config import SortingConfig
    >>> first = SortingConfig(algorithm="softsort", data="digits", device="cpu").resolved()
    >>> second = SortingConfig(algorithm="cauchy", data="digits", device="cpu", seed=1).resolved()
    >>> data = KeptData()
    >>> data.splits(first) is data.splits(second)
    True
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], Splits[Any]] | None = None

    def make_task(self, config: RunConfig) -> Task:
        """The task that a resolved configuration describes, on the data that is kept where it is the same."""
        return make_task(config, self.splits(config))

    def splits(self, config: RunConfig) -> Splits[Any]:
        """The data of a resolved configuration."""
        key = _key(config)
        if self._kept is not None and self._kept[0] == (*key, _versions(self._kept[1])):
            return self._kept[1]
        self._kept = None
        splits = load_data(config)
        # By what the files were before they were read: changed meanwhile, they are read again.
        self._kept = (*key, _versions(splits)), splits
        return splits


def _key(config: RunConfig) -> tuple[Any, ...]:
    """All that says which data a run has."""
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
