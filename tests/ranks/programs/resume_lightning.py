"""A LightningModule that has a state wherever one can have it; stopped by the file `stop-at`, as in resume.py."""

from __future__ import annotations

from typing import Any

import torch
from resume import SelfStop, data  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import Module as LightningModule  # told by what it has; a test puts Lightning's own here
from torch.nn import functional as F

import unisono as un


class Learner(LightningModule):
    trainer: Any
    log: Any
    net: Any
    begun: Tensor
    ended: Tensor
    smooth: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(SelfStop(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))
        self.register_buffer("begun", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ended", torch.zeros((), dtype=torch.int64))
        self.register_buffer("smooth", torch.zeros(()), persistent=False)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int32), persistent=False)
        self.losses: list[float] = []
        """Kept by the module itself."""

    def on_train_epoch_start(self) -> None:
        self.begun += 1
        self.temperature = 1.0 + 0.5 * self.trainer.current_epoch + float(torch.rand(()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        outputs = self.net(inputs) / self.temperature
        loss = F.cross_entropy(outputs, labels)
        self.smooth.mul_(0.9).add_(loss.detach(), alpha=0.1)
        self.steps[self.trainer.global_rank] += 1 + batch_idx
        self.losses.append(float(loss.detach()))
        self.log("accuracy", (outputs.argmax(1) == labels).float().mean())
        self.log("number", float(batch_idx))
        return loss * (1.0 + self.smooth + 0.01 * self.steps[self.trainer.global_rank])

    def on_train_epoch_end(self) -> None:
        self.ended += 1
        with torch.no_grad():
            self.net[-1].bias.mul_(0.9)
        self.log("smooth", self.smooth)
        self.log("drawn", torch.rand(()))
        self.log("place", float(100 * self.trainer.current_epoch + self.trainer.global_step))
        if self.trainer.is_global_zero:
            self.log("mean_of_kept", sum(self.losses) / len(self.losses))
        self.losses = []

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        outputs = self.net(inputs) / getattr(self, "temperature", 1.0)  # two samples are tried before the first epoch
        self.log("accuracy", (outputs.argmax(1) == labels).float().mean())
        self.log("place", float(100 * self.trainer.current_epoch + self.trainer.global_step + batch_idx))
        return F.cross_entropy(outputs, labels)

    def test_step(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = {"all": self.losses, "last": torch.tensor(self.losses[-1:])}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses = list(checkpoint["losses"]["all"])
        assert checkpoint["losses"]["last"].tolist() == torch.tensor(self.losses[-1:]).tolist()
        for weight in checkpoint["state_dict"].values():
            weight.zero_()  # the weights are back already, whatever is done here

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


task = un.Task(model=Learner, data=data, global_batch=64, epochs=3)
