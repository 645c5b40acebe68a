"""A loop by hand with `torch.save` in it; `... FOLDER PERIOD [sync]`."""

from __future__ import annotations

import os
import sys

import torch

from bench.ranks.saving import SavedTraining, learn, make_model, make_optimizer


def main() -> None:
    training, model = SavedTraining(), make_model()
    optimizer = make_optimizer(model)
    synced = "sync" in sys.argv[5:]

    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        path = training.folder / f"step-{step}.pt"
        torch.save(state, path)
        if synced:
            with path.open("rb") as file:
                os.fsync(file.fileno())

    training.attend({}, model, lambda: learn(training, model, optimizer, save), training.keep_newest)


if __name__ == "__main__":
    main()
