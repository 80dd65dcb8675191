"""The two networks of the experiments, exactly as in the works that the paper builds on, and that of the demonstration.

Both have a `precision`. With "bf16", convolutions and pooling run in bfloat16 and everything after them in float32:
scores and costs never pass through 16 bits.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from newton_losses.errors import ArgumentError, ShapeError

from .kernels import digit_features, has_digit_kernels, wide_linear

PRECISIONS = ("float32", "bf16")


class _Precise(nn.Module):
    """Holds the precision of a network's convolutions."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise ArgumentError(f"precision={precision!r} is unknown. Choose one of {PRECISIONS}.")
        self.precision = precision

    def _features(self, convolutions: nn.Module, images: Tensor) -> Tensor:
        # An autocast from outside must not reach the float32 network either: it is off unless asked for here.
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            features: Tensor = convolutions(images)
        return features.to(next(self.parameters()).dtype)


class DigitCNN(_Precise):
    """Scores for pictures of numbers: `(B, n, 1, height, width)` → `(B, n)`, with any leading dimensions.

    Conv(1, 32, 5×5) – ReLU – MaxPool 2 – Conv(32, 64, 5×5) – ReLU – MaxPool 2 – Linear(·, 64) – ReLU –
    Linear(64, 1), convolutions padded by 2, torch's default initialisation. Four MNIST digits, 28×112 pixels,
    make 12,544 features. Pixels are floats from 0 to 1 or bytes from 0 to 255; with bytes on a Hopper GPU, in
    bf16, the layers run through this project's kernels.

    >>> DigitCNN((8, 32))(torch.zeros(3, 5, 1, 8, 32)).shape
    torch.Size([3, 5])
    """

    def __init__(self, image_size: tuple[int, int] = (28, 112), precision: str = "float32") -> None:
        super().__init__(precision)
        height, width = image_size
        if height < 4 or width < 4:
            raise ArgumentError(
                f"DigitCNN: pictures of {height}×{width} pixels are too small to be pooled twice; 4×4 is the least."
            )
        self.image_size = (height, width)
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(64 * (height // 4) * (width // 4), 64), nn.ReLU(), nn.Linear(64, 1))

    def _scores_by_kernels(self, images: Tensor) -> Tensor:
        first, second = (layer for layer in self.convolutions if isinstance(layer, nn.Conv2d))
        wide, *rest = self.head
        assert isinstance(wide, nn.Linear) and first.bias is not None and second.bias is not None  # noqa: PT018
        features = digit_features(images[:, 0], first.weight, first.bias, second.weight, second.bias)
        scores = wide_linear(features, wide.weight, wide.bias)
        for layer in rest:
            scores = layer(scores)
        return scores

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim < 4 or images.shape[-3:] != (1, *self.image_size):
            height, width = self.image_size
            raise ShapeError(
                f"DigitCNN: pictures have the shape (B, n, 1, {height}, {width}), not {tuple(images.shape)}. "
                "Other sizes need DigitCNN(image_size=(height, width))."
            )
        pictures = images.flatten(0, -4)
        in_bytes = images.dtype == torch.uint8
        with torch.autocast(images.device.type, enabled=False):
            in_kernels = in_bytes and self.precision == "bf16"
            if in_kernels and has_digit_kernels(self.image_size, len(pictures), images.device):
                scores = self._scores_by_kernels(pictures)
            else:
                pixels = pictures.to(torch.float32) / 255 if in_bytes else pictures
                scores = self.head(self._features(self.convolutions, pixels))
        return scores.reshape(images.shape[:-3])


class RawPixelNetwork(nn.Module):
    """Scores of raw pixels: `(B, n, 1, height, width)` from 0 to 1, multiplied by 255, to `(B, n)`.

    For the demonstration. It has no convolutions whose `precision` could be another.
    """

    def __init__(self, image_size: tuple[int, int], precision: str = "float32") -> None:
        super().__init__()
        height, width = image_size
        self.layers = nn.Sequential(
            nn.Linear(height * width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(255 * images.flatten(-3))
        return scores.squeeze(-1)


class _BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch normalisation, around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        outside: Tensor = self.relu(inside + x)
        return outside


class _CellMaximum(nn.Module):
    """Adaptive max-pooling to size×size, by plain max-pooling, which knows all layouts, where cells are of one size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % self.size == 0 and width % self.size == 0:
            return functional.max_pool2d(x, (height // self.size, width // self.size))
        # Such cells overlap, and gradients are added up where they do: not in 16 bits.
        return functional.adaptive_max_pool2d(x.to(torch.promote_types(x.dtype, torch.float32)), self.size)


class MapCNN(_Precise):
    """Vertex costs for maps: `(B, 3, height, width)` → `(B, size, size)`, none of them negative.

    The beginning of an untrained ResNet18: conv1 (7×7, stride 2), bn1, ReLU, max-pooling (3×3, stride 2) and
    layer1 (two basic blocks of 64 channels), then adaptive max-pooling to size×size and the mean over the
    channels. Initialised as ResNets are: normal with variance 2/fan_out, batch normalisation at 1 and 0.

    >>> costs = MapCNN(12)(torch.randn(2, 3, 96, 96))
    >>> costs.shape, bool((costs >= 0).all())
    (torch.Size([2, 12, 12]), True)
    """

    def __init__(self, size: int = 12, precision: str = "float32") -> None:
        super().__init__(precision)
        self.size = size
        # The names are those of a ResNet18's parts, so that weights can be compared and carried over.
        self.trunk = nn.Sequential()
        self.trunk.add_module("conv1", nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False))
        self.trunk.add_module("bn1", nn.BatchNorm2d(64))
        self.trunk.add_module("relu", nn.ReLU())
        self.trunk.add_module("maxpool", nn.MaxPool2d(3, stride=2, padding=1))
        self.trunk.add_module("layer1", nn.Sequential(_BasicBlock(64), _BasicBlock(64)))
        # A largest value is as exact in 16 bits; only the mean over the channels is not.
        self.trunk.add_module("cells", _CellMaximum(size))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ShapeError(f"MapCNN: maps have the shape (B, 3, height, width), not {tuple(images.shape)}.")
        features = self._features(self.trunk, images)
        return features.mean(dim=1)
