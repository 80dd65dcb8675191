"""Trains with Lightning on as many ranks as the first argument says and prints the weights; a test compares them."""

import sys
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cases import ripples
from newton_losses import NewtonLoss

BATCH = 8


def main(ranks: int) -> None:
    import lightning  # here, so that this file can be imported where Lightning is not installed

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Linear(4, 3).double()
            self.loss = NewtonLoss(ripples, damping=5.0, curvature="hessian")

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            x, target = batch
            return self.loss(self.network(x), target)

        def train_dataloader(self) -> DataLoader:
            generator = torch.Generator().manual_seed(1)
            data = TensorDataset(*(torch.randn(32, n, generator=generator).double() for n in (4, 3)))
            # deals the samples of a batch to the ranks in turn
            sampler = DistributedSampler(data, ranks, self.trainer.global_rank, shuffle=False)
            return DataLoader(data, BATCH // ranks, sampler=sampler)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", devices=ranks, strategy="ddp_fork" if ranks > 1 else "auto", logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
            use_distributed_sampler=False,
        )  # fmt: skip
        module = Module()
        trainer.fit(module)
    print("weights", *module.network.weight.detach().flatten().tolist())


if __name__ == "__main__":
    main(int(sys.argv[1]))
