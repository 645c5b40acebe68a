"""A loop by hand with torch.distributed.checkpoint's `async_save` in it, as its recipe has it, in one process without a group."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save

from bench.ranks.saving import SavedTraining, learn, make_model, make_optimizer


def main() -> None:
    training, model = SavedTraining(), make_model()
    optimizer = make_optimizer(model)
    under_way: list[Future[Any]] = []
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

    def save(step: int) -> None:
        began = perf_counter()
        while under_way:
            under_way.pop().result()
        weights, moments = get_state_dict(model, optimizer)
        future: Any = async_save({"model": weights, "optimizer": moments}, checkpoint_id=training.folder / f"step-{step}")
        training.own_s.append(perf_counter() - began)
        future.add_done_callback(lambda _: training.whole_s.append(perf_counter() - began))
        under_way.append(future)

    def settle() -> None:
        for future in under_way:
            future.result()
        training.keep_newest()

    training.attend({}, model, lambda: learn(training, model, optimizer, save), settle)


if __name__ == "__main__":
    main()
