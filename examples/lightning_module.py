"""A Newton loss in Lightning: nothing but the loss changes.

    pip install newton-losses lightning scikit-learn
    python examples/lightning_module.py

Handwritten digits of scikit-learn, five at a time; a small network learns to read them from their order alone.
`NewtonLoss` is a module with the value of the loss it wraps, so logging, early stopping and checkpoints work as
they are; in validation, where no gradient is taken, it is the plain loss.
"""

import argparse

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import newton_losses as nl


class RankDigits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        ranking = nl.sorting.SortingLoss("cauchy", steepness=10.0, ties="mask")
        self.loss = nl.NewtonLoss(ranking, curvature="fisher")

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, digits = batch
        loss = self.loss(self.model(images).squeeze(-1), digits)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        images, digits = batch
        scores = self.model(images).squeeze(-1)
        self.log("loss", self.loss(scores, digits), prog_bar=True)
        pairs = torch.sign(digits[:, :, None] - digits[:, None, :])
        right = torch.sign(scores[:, :, None] - scores[:, None, :]) == pairs
        self.log("pairs", right[pairs != 0].double().mean(), prog_bar=True)
        self.log("skipped", self.loss.skipped.double())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def make_sets(count: int, part: slice, generator: torch.Generator) -> TensorDataset:
    images, digits = (torch.as_tensor(array)[part].float() for array in load_digits(return_X_y=True))
    chosen = torch.randint(len(images), (count, 5), generator=generator)
    return TensorDataset(images[chosen] / 16, digits[chosen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--sets", type=int, default=4000)
    arguments = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    generator = torch.Generator().manual_seed(0)
    training = DataLoader(make_sets(arguments.sets, slice(0, 1400), generator), batch_size=50, shuffle=True)
    validation = DataLoader(make_sets(1000, slice(1400, None), generator), batch_size=500)
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = RankDigits()
    trainer.validate(module, validation, verbose=False)
    print(f"pairs of digits in the right order, untrained: {trainer.callback_metrics['pairs']:.1%}")
    trainer.fit(module, training, validation)
    print(f"pairs of digits in the right order, trained:   {trainer.callback_metrics['pairs']:.1%}")


if __name__ == "__main__":
    main()
