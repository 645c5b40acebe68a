"""What both ranks of Lightning share: the module, and a callback that ends a turn."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

lightning: Any = importlib.import_module("lightning.pytorch")  # lives in an environment of its own
environments: Any = importlib.import_module("lightning.pytorch.plugins.environments")
"""Said to a trainer, as finding it out would load an MPI."""
VERSIONS = {"lightning": importlib.import_module("lightning").__version__}


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, model: nn.Module, optimizer: Callable[[nn.Module], Optimizer]) -> None:
        super().__init__()
        self.model, self._optimizer = model, optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(self.model(inputs), targets)

    def configure_optimizers(self) -> Optimizer:
        return self._optimizer(self)


def calling(event: str, turn: Callable[[], None]) -> Any:
    """Local: a callback that calls `turn` at this event."""
    return type("Turn", (lightning.Callback,), {event: lambda *_: turn()})()
