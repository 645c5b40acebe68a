"""A rank of Lightning: its Trainer with everything off that can be (`barebones`), DDP over gloo at more than one worker."""

from __future__ import annotations

from typing import Any

from bench.ranks.learning import Learning, make_model
from bench.ranks.lightning_parts import VERSIONS, Module, calling, environments, lightning


def main() -> None:
    learning = Learning()
    model, environment = make_model(learning.case), environments.LightningEnvironment
    strategy: Any = "auto"
    if learning.size > 1:
        environment = environments.TorchElasticEnvironment
        strategy = lightning.strategies.DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=learning.size,
        strategy=strategy,
        barebones=True,
        max_epochs=-1,
        use_distributed_sampler=False,
        callbacks=[calling("on_train_epoch_end", learning.turns.epoch_done)],
        plugins=[environment()],
    )
    learning.attend(VERSIONS, model, lambda: trainer.fit(Module(model, learning.optimizer), learning.batches()))


if __name__ == "__main__":
    main()
