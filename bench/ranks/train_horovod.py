"""A loop by hand with `DistributedOptimizer`, of ours or of Horovod itself: `... SOCKET GROUP CASE DATA MODULE`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from bench.ranks.learning import Learning, make_model
from bench.ranks.slot import version_of
from bench.ranks.train_torch import learn


def main() -> None:
    hvd: Any = importlib.import_module(sys.argv[5])
    hvd.init()
    learning = Learning(hvd.rank(), hvd.size())
    model = make_model(learning.case)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(learning.optimizer(model), named_parameters=model.named_parameters())
    learning.attend(version_of(sys.argv[5]), model, lambda: learn(learning, model, optimizer))
    hvd.shutdown()


if __name__ == "__main__":
    main()
