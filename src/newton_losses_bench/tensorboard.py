"""Evaluations as TensorBoard curves, in the run's folder. Needs the package `tensorboard`."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from .config import RunConfig
from .describe import by_split
from .progress import Record, Silent


class TensorBoard(Silent):
    """Writes all figures of every evaluation. A resumed run continues the curves where its checkpoint is."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def started(self, config: RunConfig, step: int, total: int, evaluations: list[Record]) -> None:
        self.close()  # a run that found no room begins a second time
        # The purge hides what a killed process wrote after the checkpoint that this one goes on from.
        folder = str(Path(self._folder) / "tensorboard")
        self._writer = SummaryWriter(folder, purge_step=step + 1)

    def evaluated(self, record: Record) -> None:
        assert self._writer is not None
        for split, values in by_split(record).items():
            for figure, per_cent in values.items():
                self._writer.add_scalar(f"{split}/{figure}", per_cent, record["step"])
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
