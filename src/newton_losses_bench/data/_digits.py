"""The digits that come with scikit-learn: 1,797 pictures of real handwriting, 8×8, without a download."""

import torch

from ._files import Splits, known_split
from ._images import LabeledImages

# In the order of the file, which goes from writer to writer: shuffling would put a hand into several parts.
_BOUNDS = {"train": (0, 1297), "val": (1297, 1497), "test": (1497, 1797)}


class Digits(LabeledImages):
    """One split of scikit-learn's digits: the first 1,297 pictures, the next 200, the last 300.

    Their 17 grey levels are stretched to 0, …, 255. A set this small is soon known by heart: draw training
    sets with an `Affine` to get an endless supply.

    >>> Digits("test").images.shape
    torch.Size([300, 8, 8])
    """

    def __init__(self, split: str = "train") -> None:
        from sklearn.datasets import load_digits

        begin, end = _BOUNDS[known_split(split)]
        data = load_digits()
        levels = torch.from_numpy(data.images[begin:end]).to(torch.int32)
        images = (levels * 255 + 8) // 16
        super().__init__(images.to(torch.uint8), torch.from_numpy(data.target[begin:end]))

    @staticmethod
    def splits() -> Splits[LabeledImages]:
        """All three splits."""
        return Splits(*(Digits(split) for split in Splits._fields))
