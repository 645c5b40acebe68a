"""A rank of Lightning: its Trainer with everything off that can be (`barebones`), DDP over gloo at more than one worker."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from bench.ranks.learning import Learning, make_model


def main() -> None:
    lightning: Any = importlib.import_module("lightning.pytorch")  # lives in an environment of its own
    learning = Learning()
    model = make_model(learning.case)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
            inputs, targets = batch
            return functional.cross_entropy(self.model(inputs), targets)

        def configure_optimizers(self) -> Any:
            return learning.optimizer(self)

    class Turn(lightning.Callback):  # type: ignore[misc]
        def on_train_epoch_end(self, _trainer: Any, _module: Any) -> None:
            learning.turns.epoch_done()

    environments = importlib.import_module("lightning.pytorch.plugins.environments")
    strategy: Any = "auto"
    if learning.size > 1:
        strategies = importlib.import_module("lightning.pytorch.strategies")
        strategy = strategies.DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=learning.size,
        strategy=strategy,
        barebones=True,
        max_epochs=-1,
        use_distributed_sampler=False,
        callbacks=[Turn()],
        # Said, as finding it out would load an MPI.
        plugins=[environments.TorchElasticEnvironment() if learning.size > 1 else environments.LightningEnvironment()],
    )
    versions = {"lightning": importlib.import_module("lightning").__version__}
    learning.attend(versions, model, lambda: trainer.fit(Module(model), learning.batches()))


if __name__ == "__main__":
    main()
