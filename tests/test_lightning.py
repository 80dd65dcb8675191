"""A Newton loss in a Lightning module: nothing but the loss changes."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from cases import ripples
from newton_losses import InjectFisher, NewtonLoss

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's own deprecations at import
    lightning = pytest.importorskip("lightning")


class Module(lightning.LightningModule):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.network = nn.Linear(4, 3)
        self.inject = InjectFisher(1.0) if way == "inject" else nn.Identity()
        self.loss = NewtonLoss(ripples, way, damping=5.0) if way != "inject" else self.plain

    @staticmethod
    def plain(y: Tensor, target: Tensor) -> Tensor:
        return ripples(y, target).mean()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, target = batch
        return self.loss(self.inject(self.network(x)), target)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, target = batch
        self.log("value", self.loss(self.network(x), target))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["hessian", "fisher", "inject"])
def test_lightning(way: str, tmp_path) -> None:
    torch.manual_seed(0)
    module = Module(way)
    start = module.network.weight.detach().clone()
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.zeros(32, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path,
        enable_model_summary=False, accumulate_grad_batches=2,
    )  # fmt: skip
    trainer.fit(module, loader, loader)
    assert not torch.equal(start, module.network.weight)
    assert torch.isfinite(trainer.callback_metrics["value"])
    assert set(module.state_dict()) == {"network.weight", "network.bias"}
