"""Lightning's Trainer with its checkpoint callback."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from bench.ranks.saving import SavedTraining, make_model, make_optimizer


def main() -> None:
    lightning: Any = importlib.import_module("lightning.pytorch")  # lives in an environment of its own
    training, model = SavedTraining(), make_model()

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
            inputs, targets = batch
            return functional.cross_entropy(self.model(inputs), targets)

        def configure_optimizers(self) -> Any:
            return make_optimizer(self)

    class Turn(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None:
            training.step_begins()

    callbacks = importlib.import_module("lightning.pytorch.callbacks")
    environments = importlib.import_module("lightning.pytorch.plugins.environments")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[Turn(), callbacks.ModelCheckpoint(dirpath=training.folder, every_n_train_steps=training.period)],
        # Said, as finding it out would load an MPI.
        plugins=[environments.LightningEnvironment()],
    )
    versions = {"lightning": importlib.import_module("lightning").__version__}
    training.attend(versions, model, lambda: trainer.fit(Module(model), training.batches()), lambda: None)


if __name__ == "__main__":
    main()
