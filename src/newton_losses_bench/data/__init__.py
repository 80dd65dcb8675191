"""The data of the two experiments: handwritten digits, many to a number, and maps with shortest paths.

Everything lies under one folder, `root`: the argument, else the environment variable `NEWTON_LOSSES_DATA`,
else the user's cache folder. Nothing is read, made or downloaded when this package is imported.
"""

from . import terrain as terrain
from ._affine import Affine as Affine
from ._digits import Digits as Digits
from ._files import DataError as DataError
from ._files import DataNotFoundError as DataNotFoundError
from ._files import Splits as Splits
from ._files import data_root as data_root
from ._files import stamps as stamps
from ._images import LabeledImages as LabeledImages
from ._mnist import MNIST as MNIST
from ._multi_digit import DigitBatch as DigitBatch
from ._multi_digit import MultiDigit as MultiDigit
from ._path_maps import PathBatch as PathBatch
from ._path_maps import PathMaps as PathMaps
from ._warcraft import Warcraft as Warcraft
from .terrain import Terrain as Terrain
