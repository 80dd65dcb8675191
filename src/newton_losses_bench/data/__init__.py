"""The data of the two experiments: handwritten digits, many to a number, and maps with shortest paths.

Everything lies under one folder, `root`: the argument, else the environment variable `NEWTON_LOSSES_DATA`,
else the user's cache folder. Nothing is read, made or downloaded when this package is imported.
"""

from . import terrain as terrain
from .digits import MNIST as MNIST
from .digits import Affine as Affine
from .digits import Digits as Digits
from .digits import LabeledImages as LabeledImages
from .digits import MultiDigit as MultiDigit
from .files import DataError as DataError
from .files import DataNotFoundError as DataNotFoundError
from .files import Splits as Splits
from .files import data_root as data_root
from .glyphs import glyphs as glyphs
from .path_maps import PathMaps as PathMaps
from .path_maps import Warcraft as Warcraft
from .terrain import Terrain as Terrain
