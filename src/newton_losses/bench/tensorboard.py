"""Evaluations as TensorBoard curves, in the run's folder. Needs the package `tensorboard`."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from .config import RunConfig
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
        averaged = {f"averaged {name}": value for name, value in record.get("averaged", {}).items()}
        for name, value in {**record, **averaged}.items():
            if name == "averaged":
                continue
            if isinstance(value, dict):
                for figure, per_cent in value.items():
                    self._writer.add_scalar(f"{name}/{figure}", per_cent, record["step"])
            elif name != "step" and value is not None:
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
