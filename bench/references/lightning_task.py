"""A LightningModule that logs in its steps and at the end of an epoch, with an optimiser and a schedule of its own."""

from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_task import data  # type: ignore[import-not-found]  # stands beside this file

import unisono as un


class Classifier(lightning.LightningModule):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10)
        )  # fmt: skip

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        outputs = self(batch[0])
        self.log("train_acc", (outputs.argmax(1) == batch[1]).float().mean())
        return cross_entropy(outputs, batch[1])

    def on_train_epoch_end(self) -> None:
        self.log("size", next(self.net.parameters()).norm())

    def validation_step(self, batch: Any) -> Tensor:
        outputs = self(batch[0])
        self.log("acc", (outputs.argmax(1) == batch[1]).float().mean())
        return cross_entropy(outputs, batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


task = un.Task(model=Classifier, data=data, metrics=("f1",), monitor="acc", global_batch=48, epochs=3)
