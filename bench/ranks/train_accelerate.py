"""A rank of Accelerate: the loop by hand with its model, optimiser and backward pass, DDP over gloo at more than one worker."""

from __future__ import annotations

import importlib
from typing import Any

from torch.nn import functional

from bench.ranks.learning import Learning, make_model


def main() -> None:
    accelerate: Any = importlib.import_module("accelerate")  # lives in an environment of its own
    learning = Learning()
    made = make_model(learning.case)
    settings = accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[settings])
    if accelerator.num_processes != learning.size:
        raise RuntimeError(f"Accelerate sees {accelerator.num_processes} processes of {learning.size}")
    model, optimizer = accelerator.prepare(made, learning.optimizer(made))
    batches = learning.batches()

    def train() -> None:
        model.train()
        while True:
            for inputs, targets in batches:
                loss = functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
            learning.turns.epoch_done()

    learning.attend({"accelerate": accelerate.__version__}, made, train)
    accelerator.end_training()


if __name__ == "__main__":
    main()
