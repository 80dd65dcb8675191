"""Ranking supervision: learn to read numbers from nothing but the order of sets of them."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from newton_losses.sorting import SortingLoss, element_wise_match, exact_match

from ..config import SortingConfig
from ..data import MNIST, Affine, Digits, LabeledImages, MultiDigit, Splits, glyphs
from ..kernels import has_digit_kernels
from ..machine import device_kind
from ..models import DigitCNN, RawPixelNetwork
from .task import Figures, Record, Tell, counting, make_model, nobody, random_stream, training_loss

# Pictures in one batch of an evaluation: 28×112 pixels make 1.4 MB each after the first layer.
_PICTURES_AT_ONCE = {"cpu": 500, "cuda": 10_000}


class SortingTask:
    """Sets of `n` multi-digit numbers, a score for each, a sorting loss on the scores. See `Task`.

    `splits` replaces the digits that the configuration names.
    """

    def __init__(self, config: SortingConfig, splits: Splits[LabeledImages] | None = None) -> None:
        self._config = config
        self.generators = {name: random_stream(config.seed, name, config.device) for name in ("batches", "evaluation")}
        splits = splits or load_digits(config)
        in_kernels = config.kernels and _fits_kernels(config, splits.train)

        def sets(data: LabeledImages, affine: Affine | None = None) -> MultiDigit:
            return MultiDigit(data.to(config.device), config.n, config.digits, affine, in_kernels)

        self._train = sets(splits.train, Affine() if config.augment else None)
        self._held_out = {
            "validation": (sets(splits.val), config.validation_sets),
            "test": (sets(splits.test), config.test_sets),
        }
        network = RawPixelNetwork if config.data == "glyphs" else DigitCNN
        self.model = make_model(lambda precision: network(self._train.image_size, precision), config)
        loss = SortingLoss(
            config.algorithm,  # type: ignore[arg-type]
            temperature=config.temperature,
            steepness=config.steepness,
            numerics=config.numerics,  # type: ignore[arg-type]
            exchangeable=config.exchangeable,  # in the paper the curvature is that of the outputs as they are stored
        )
        self.loss_module = training_loss(loss, config).to(config.device)
        # Network and loss apart from the drawing: pictures are put together once, instead of for every window of a
        # convolution. Where the network runs through kernels of our own, they are compiled already.
        self._forward = torch.compile(self.model) if config.compile and not in_kernels else self.model
        self._loss = torch.compile(self.loss_module) if config.compile else self.loss_module
        self.tensors: dict[str, Tensor] = {}
        self.total_steps, self.eval_every = config.steps, config.eval_every
        self.drops: tuple[int, ...] = ()
        self.batch_sizes: tuple[int, ...] = (config.batch_size,)

    def begin_step(self, step: int) -> int:
        return self._config.batch_size

    def draw_loss(self, size: int) -> Tensor:
        images, values = self._train.sample(size, self.generators["batches"])
        return cast(Tensor, self._loss(self._forward(images), values))

    def evaluate(self, tell: Tell = nobody) -> Figures:
        done = counting(tell, sum(count for _, count in self._held_out.values()))
        return {name: self._figures(sets, count, done) for name, (sets, count) in self._held_out.items()}

    def reported(self, evaluations: list[Record]) -> Record:
        """The one with the best exact match on the validation sets; the first of equals."""
        return max(evaluations, key=lambda record: record["validation"]["exact_match"])

    def _figures(self, sets: MultiDigit, count: int, done: Callable[[int], None]) -> dict[str, float]:
        """Exact match: sets with all ranks right. Element-wise: items at their rank. In per cent."""
        at_once = max(1, _PICTURES_AT_ONCE[device_kind(self._config.device)] // self._config.n)
        exact = torch.zeros((), dtype=torch.float64, device=self._config.device)
        right = torch.zeros_like(exact)
        for begin in range(0, count, at_once):
            images, values = sets.sample(min(at_once, count - begin), self.generators["evaluation"])
            scores = self.model(images)
            exact += exact_match(scores, values).double().sum()
            right += element_wise_match(scores, values).double().sum()
            done(len(values))
        return {
            "exact_match": 100 * exact.item() / count,
            "element_wise": 100 * right.item() / count,
        }


def _fits_kernels(config: SortingConfig, digits: LabeledImages) -> bool:
    """Whether the network can run through kernels of our own, which take the bytes that pictures are stored as."""
    height, width = digits.images.shape[1:]
    size, count = (height, config.digits * width), config.batch_size * config.n
    has_kernels = config.data != "glyphs" and not config.augment
    return has_kernels and has_digit_kernels(size, count, torch.device(config.device))


def load_digits(config: SortingConfig) -> Splits[LabeledImages]:
    """The three splits of the digits that a configuration names."""
    if config.data == "glyphs":
        return glyphs()
    return MNIST.splits(config.data_root) if config.data == "mnist" else Digits.splits()
