"""The Warcraft shortest-path set, 12×12, from its real files. They are fetched by hand, once."""

import os
from pathlib import Path

from ._files import DataNotFoundError, Splits, data_root
from ._map_files import MapFiles, normalized_splits
from ._path_maps import PathMaps

ARCHIVE = "warcraft_shortest_path_oneskin"
SIZE = 12
SUMS = {
    "train_maps.npy": "c31760c5fbd9d034b6e21a6612895e69",
    "train_vertex_weights.npy": "761cc8098730504335efdefec3b221a6",
    "train_shortest_paths.npy": "1483015985796f3bf9f3e5e00cb8e855",
    "val_maps.npy": "cfe9288a537d46be48c0c287885f8405",
    "val_vertex_weights.npy": "452753f9d8b31ac03bbd532953974072",
    "val_shortest_paths.npy": "95e81a2a3263d6520fa5f07a8701c74a",
    "test_maps.npy": "a5c50ae11e4bd01cb1a2cd76e5849b22",
    "test_vertex_weights.npy": "071dbcf2aa9d98fc255abdcb780151b1",
    "test_shortest_paths.npy": "deae60b10d932e2a37271df4b44e295d",
}
_ADVICE = (
    "The Warcraft maps are fetched by hand: download the archive of 915,169,563 bytes from "
    "https://doi.org/10.17617/3.YJCQ5S and unpack it, so that the folder "
    f"{ARCHIVE}/12x12 lies under the data root. Generated look-alike maps need no download: "
    "see newton_losses_bench.data.terrain."
)


class Warcraft(MapFiles):
    """One split of the Warcraft set from `root/warcraft_shortest_path_oneskin/12x12/`.

    `root/Warcraft/12x12/` and `root/Warcraft/warcraft_shortest_path_oneskin/12x12/` do as well. With `check`,
    the md5 sums of the split's files are compared, once for as long as the files do not change.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, split: str = "train", check: bool = True) -> None:
        super().__init__(_folder(data_root(root)), split, SIZE, SUMS, _ADVICE, check)

    @staticmethod
    def splits(root: str | os.PathLike[str] | None = None, check: bool = True) -> Splits[PathMaps]:
        """All three splits as tensors, normalised by the mean and standard deviation of the training maps."""
        return normalized_splits(*(Warcraft(root, split, check) for split in Splits._fields))

    @staticmethod
    def places(root: str | os.PathLike[str] | None = None) -> list[Path]:
        """The folders where its files are looked for."""
        base = data_root(root)
        return [base / ARCHIVE / "12x12", base / "Warcraft" / "12x12", base / "Warcraft" / ARCHIVE / "12x12"]


def _folder(root: Path) -> Path:
    candidates = Warcraft.places(root)
    for folder in candidates:
        if folder.is_dir():
            return folder
    places = ", ".join(str(folder) for folder in candidates)
    raise DataNotFoundError(f"The Warcraft maps are not there; looked for the folders {places}. {_ADVICE}")
