"""The two networks of the experiments, exactly as in the works that the paper builds on.

Both have a `precision`: with "bf16" the convolutions run in bfloat16, while what follows them is float32:
scores and costs never pass through 16 bits.
"""

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, ShapeError

PRECISIONS = ("float32", "bf16")


class _Precise(nn.Module):
    """Holds the precision of a network's convolutions."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise ArgumentError(f"precision={precision!r} is not known; it is one of {PRECISIONS}.")
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
    make 12,544 features.

    >>> DigitCNN((8, 32))(torch.zeros(3, 5, 1, 8, 32)).shape
    torch.Size([3, 5])
    """

    def __init__(self, image_size: tuple[int, int] = (28, 112), precision: str = "float32") -> None:
        super().__init__(precision)
        height, width = image_size
        if height < 4 or width < 4:
            raise ArgumentError(
                f"DigitCNN: pictures of {height}×{width} pixels are too small to be pooled twice."
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
        self.head = nn.Sequential(
            nn.Linear(64 * (height // 4) * (width // 4), 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim < 4 or images.shape[-3:] != (1, *self.image_size):
            height, width = self.image_size
            raise ShapeError(
                f"DigitCNN: pictures have the shape (B, n, 1, {height}, {width}), not {tuple(images.shape)}. "
                "Other sizes need DigitCNN(image_size=(height, width))."
            )
        features = self._features(self.convolutions, images.flatten(0, -4))
        with torch.autocast(images.device.type, enabled=False):
            scores: Tensor = self.head(features)
        return scores.reshape(images.shape[:-3])


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
        self.pool = nn.AdaptiveMaxPool2d(size)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ShapeError(f"MapCNN: maps have the shape (B, 3, height, width), not {tuple(images.shape)}.")
        features = self._features(self.trunk, images)
        costs: Tensor = self.pool(features).mean(dim=1)
        return costs
