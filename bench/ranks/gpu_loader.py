"""Loops as users write them: a DataLoader with eight workers and pinned memory; a loop of one's own, or Lightning's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from bench.gpu_cases import SEED, Case, make_data, make_network
from bench.ranks.gpu_hand import LAYOUTS, autocast
from bench.ranks.gpu_turns import Loop

WORKERS = 8
PREFETCH = 2
"""Batches of each worker: the default of torch."""


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """One sample at a time, as bytes: the device makes numbers of them, which is faster than to send numbers."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self._inputs[number], self._targets[number]


class WithLoader(Loop):
    """What both share."""

    lead_steps = WORKERS * PREFETCH + 4
    releases = True

    def __init__(self, case: Case, device: str, num_workers: int) -> None:
        self._case, self._device, self._num_workers = case, torch.device(device), num_workers
        self._last = torch.zeros(())
        self._layout = LAYOUTS[case.layouts[-1]]

    def prepare(self) -> None:
        inputs, targets = map(torch.from_numpy, make_data(self._case))
        self.loader = DataLoader(
            Samples(inputs, targets),
            batch_size=self._case.batch,
            shuffle=True,
            drop_last=True,
            num_workers=self._num_workers,
            persistent_workers=self._num_workers > 0,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator().manual_seed(SEED),
        )
        self.model = make_network(self._case).to(memory_format=self._layout)  # type: ignore[call-overload]

    def loss_of(self, images: Tensor, targets: Tensor) -> Tensor:
        numbers = (images.float() / 255).contiguous(memory_format=self._layout)
        loss = functional.cross_entropy(self.model(numbers), targets)
        self._last = loss.detach()
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), self._case.lr, self._case.momentum)

    def loss(self) -> float:
        return float(self._last.item())


class PlainLoader(WithLoader):
    """Eager, with autocast."""

    def train(self, step_done: Callable[[], None]) -> None:
        self.model.to(self._device)
        optimizer = self.optimizer()
        self.model.train()
        for images, targets in self._batches():
            with autocast(self._device):
                loss = self.loss_of(images, targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step_done()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for images, targets in self.loader:
                yield images.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)


class Lightning(WithLoader):
    """Lightning's Trainer with bf16-mixed: no logger, no checkpoint, no progress bar."""

    def prepare(self) -> None:
        super().prepare()
        self._lightning = _module("lightning.pytorch", "pytorch_lightning")
        self.chosen = f"Lightning {self._lightning.__version__}"

    def train(self, step_done: Callable[[], None]) -> None:
        lightning, loop = self._lightning, self

        class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = loop.model

            def training_step(self, batch: Any, _number: int) -> Tensor:
                return loop.loss_of(*batch)

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return loop.optimizer()

        environment = importlib.import_module(f"{lightning.__name__}.plugins.environments").LightningEnvironment
        trainer = lightning.Trainer(
            accelerator="gpu" if self._device.type == "cuda" else "cpu",
            devices=1,
            precision="bf16-mixed",
            max_epochs=-1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[type("Turn", (lightning.Callback,), {"on_train_batch_end": lambda *_: step_done()})()],
            plugins=[environment()],  # said, as finding it out would load an MPI
        )
        trainer.fit(Module(), self.loader)


def _module(*names: str) -> Any:
    """The first of them that is installed."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(names[-1])
