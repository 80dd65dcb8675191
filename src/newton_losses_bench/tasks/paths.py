"""Shortest-path supervision: learn the costs of terrain from nothing but the best paths over it."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from newton_losses import paths as grid
from newton_losses.perturbed import FenchelYoungLoss
from newton_losses.smoothing import SmoothedAlgorithm, SmoothedLoss

from ..config import PathsConfig
from ..data import PathMaps, Splits, Warcraft, terrain
from ..machine import device_kind
from ..models import MapCNN
from .task import Figures, Record, Tell, counting, make_model, nobody, random_stream, training_loss

# Maps in one batch of an evaluation.
_MAPS_AT_ONCE = {"cpu": 100, "cuda": 1000}


class PathsTask:
    """Maps, a cost for each of their cells, a loss of the best path by these costs. See `Task`.

    `splits` replaces the maps that the configuration names.
    """

    def __init__(self, config: PathsConfig, splits: Splits[PathMaps] | None = None) -> None:
        self._config = config
        self.generators = {name: random_stream(config.seed, name, config.device) for name in ("batches", "noise")}
        splits = splits or load_maps(config)
        self._train = splits.train.to(config.device)
        self._held_out = {"validation": splits.val.to(config.device), "test": splits.test.to(config.device)}
        self.model = make_model(lambda p: MapCNN(self._train.size, p), config)
        # The network alone: a black box in the loss would break the graph. An epoch has two batch sizes, each compiled
        # separately: code for any size would be slower.
        self._forward = torch.compile(self.model, dynamic=False) if config.compile else self.model
        loss = path_loss(config, self.generators["noise"])
        self.loss_module = training_loss(loss, config).to(config.device)
        self._steps_per_epoch = -(-len(self._train) // config.batch_size)
        self.total_steps = self._steps_per_epoch * config.epochs
        self.eval_every = self._steps_per_epoch * config.eval_every
        self.drops = tuple(self._steps_per_epoch * epoch for epoch in config.drops or ())
        # The order of this epoch and the place in it are on the device: a captured step reads and moves them.
        self.tensors = {
            "order": torch.zeros(len(self._train), dtype=torch.int64, device=config.device),
            "place": torch.zeros((), dtype=torch.int64, device=config.device),
        }
        last = len(self._train) - (self._steps_per_epoch - 1) * config.batch_size
        full = min(config.batch_size, len(self._train))
        self.batch_sizes: tuple[int, ...] = (full,) if last == full else (full, last)
        self._offsets = torch.arange(full, device=config.device)

    def begin_step(self, step: int) -> int:
        place = step % self._steps_per_epoch
        if place == 0:
            self.tensors["order"].copy_(self._train.order(self.generators["batches"]))
            self.tensors["place"].zero_()
        return self.batch_sizes[-1] if place == self._steps_per_epoch - 1 else self.batch_sizes[0]

    def draw_loss(self, size: int) -> Tensor:
        place = self.tensors["place"]
        drawn = self.tensors["order"].index_select(0, place + self._offsets[:size])
        batch = self._train.batch(drawn)
        place += size
        return cast(Tensor, self.loss_module(self._forward(batch.images), batch.paths))

    def evaluate(self, tell: Tell = nobody) -> Figures:
        done = counting(tell, sum(map(len, self._held_out.values())))
        return {name: self._figures(maps, done) for name, maps in self._held_out.items()}

    def reported(self, evaluations: list[Record]) -> Record:
        """The last one: this benchmark has no model selection."""
        return evaluations[-1]

    def _figures(self, maps: PathMaps, done: Callable[[int], None]) -> dict[str, float]:
        """Perfect match: the path is the label's. Cost match: it is as good as the label's. In per cent."""
        perfect = torch.zeros((), dtype=torch.int64, device=self._config.device)
        as_good = torch.zeros_like(perfect)
        at_once = _MAPS_AT_ONCE[device_kind(self._config.device)]
        for begin in range(0, len(maps), at_once):
            indices = torch.arange(begin, min(begin + at_once, len(maps)), device=self._config.device)
            batch = maps.batch(indices)
            found = best_path(self.model(batch.images))
            perfect += (found == batch.paths).flatten(1).all(1).sum()
            as_good += (tenths(batch.weights, found) == tenths(batch.weights, batch.paths)).sum()
            done(len(indices))
        return {
            "perfect_match": 100 * perfect.item() / len(maps),
            "cost_match": 100 * as_good.item() / len(maps),
        }


def tenths(weights: Tensor, path: Tensor) -> Tensor:
    """The cost of a path in tenths, exactly: all terrains cost whole tenths, which float16 had rounded."""
    return ((10 * weights).round().to(torch.int64) * (path > 0.5)).flatten(1).sum(1)


def path_loss(config: PathsConfig, generator: torch.Generator) -> Callable[..., Tensor]:
    """The loss of costs `(B, H, W)` against the wanted paths, one value per map: a sum over the cells."""
    if config.algorithm == "bellman-ford":
        assert config.beta is not None
        assert config.iterations is not None
        relaxed = grid.RelaxedBellmanFord(config.beta, config.iterations, config.loop)  # type: ignore[arg-type]
        return grid.PathLoss(relaxed, config.norm)  # type: ignore[arg-type]
    assert config.scale is not None
    assert config.num_samples is not None
    # By default the paper's baseline, the value without noise, and not the library's own default.
    settings: dict[str, Any] = {
        "scale": config.scale,
        "num_samples": config.num_samples,
        "variance_reduction": "leave_one_out" if config.leave_one_out else "value",
        "generator": generator,
    }
    if config.algorithm == "smoothed-loss":
        return SmoothedLoss(hamming, **settings)
    if config.algorithm == "fenchel-young":
        return FenchelYoungLoss(best_path, **settings)
    return grid.PathLoss(SmoothedAlgorithm(best_path, **settings), "l2")


def hamming(costs: Tensor, wanted: Tensor) -> Tensor:
    """In how many cells the best path differs from the wanted one, `(B, H, W)` twice to `(B,)`."""
    return (best_path(costs) - wanted).abs().flatten(1).sum(1)


def best_path(costs: Tensor) -> Tensor:
    """The masks of the best paths, NaN where the costs are: a run that has diverged continues, and its loss shows it.

    An empty path, which `shortest_path` returns for such a map, would be a finite loss; an error would end a run on the
    CPU that continues on CUDA, where nothing checks.

    >>> best_path(torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[1.0, torch.nan], [3.0, 4.0]]]))
    tensor([[[1., 0.],
             [0., 1.]],
    <BLANKLINE>
            [[nan, nan],
             [nan, nan]]])
    """
    found = grid.solve(costs, strict=False)
    return found.path.masked_fill(found.cost.isnan()[..., None, None], torch.nan)


def load_maps(config: PathsConfig) -> Splits[PathMaps]:
    """The three splits, normalised by the training maps."""
    if config.data == "warcraft":
        return Warcraft.splits(config.data_root)
    counts = (config.train_maps, config.test_maps, config.test_maps)
    return terrain.load(config.data_root, config.size, counts, config.data_seed)
