"""Lightning's Trainer with its checkpoint callback."""

from __future__ import annotations

from bench.ranks.lightning_parts import VERSIONS, Module, calling, environments, lightning
from bench.ranks.saving import SavedTraining, make_model, make_optimizer


def main() -> None:
    training, model = SavedTraining(), make_model()
    save = lightning.callbacks.ModelCheckpoint(dirpath=training.folder, every_n_train_steps=training.period)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[calling("on_train_batch_start", training.step_begins), save],
        plugins=[environments.LightningEnvironment()],
    )
    module = Module(model, make_optimizer)
    training.attend(VERSIONS, model, lambda: trainer.fit(module, training.batches()), lambda: None)


if __name__ == "__main__":
    main()
