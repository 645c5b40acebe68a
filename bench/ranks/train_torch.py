"""A loop as one writes it by hand: plain at one worker, DistributedDataParallel over gloo at more; `... RANK SIZE [follow|bind]`.

`follow`: it also sums loss and accuracy as Unisono does in every step. `bind`: each rank stays on its part of the CPUs.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bench.ranks.learning import Learning, make_model
from bench.ranks.slot import stay_on_part


def learn(learning: Learning, model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Collective, blocking: nothing but what learning needs."""
    optimizer, batches = optimizer or learning.optimizer(model), learning.batches()
    model.train()
    while True:
        for inputs, targets in batches:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()  # without an argument, which Horovod's own does not take
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        learning.turns.epoch_done()


def learn_and_follow(learning: Learning, model: nn.Module) -> None:
    """Local, blocking: the same, and the loss and accuracy of every step on the host."""
    optimizer, batches = learning.optimizer(model), learning.batches()
    model.train()
    while True:
        loss_sum, num_hits, num_samples = 0.0, 0, 0
        for inputs, targets in batches:
            outputs = model(inputs)
            loss = functional.cross_entropy(outputs, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += loss.item() * len(inputs)
            num_hits += int((outputs.argmax(1) == targets).sum().item())
            num_samples += len(inputs)
        print(f"loss {loss_sum / num_samples:.4f}  accuracy {num_hits / num_samples:.4f}", flush=True)
        learning.turns.epoch_done()


def main() -> None:
    learning, how = Learning(), sys.argv[7:]
    if "bind" in how:
        stay_on_part(learning.rank, learning.size)
    model = made = make_model(learning.case)
    if learning.size > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(made, gradient_as_bucket_view=True)
    train = learn_and_follow if "follow" in how else learn
    learning.attend({}, made, lambda: train(learning, model))
    if learning.size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
