"""Each algorithm trains the Keras model of examples/keras_digits.py, one after the other in the same processes.

python keras_algorithms.py OUT ALGORITHM...: writes OUT.RANK, the test accuracy of each as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import unisono as un
from unisono.run import execute
from unisono.task.task_file import load_task
from unisono.task.train_config import TrainConfig

TASK = Path(__file__).parents[3] / "examples" / "keras_digits.py"
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "allreduce": {},
    "local_sgd": {"algorithm.period": 4},
    "downpour": {"lr": 0.02},
    "easgd": {"optimizer.momentum": 0.0, "lr": 0.5, "algorithm.period": 2, "epochs": 20},
    "gem": {},
    "diloco": {"algorithm.period": 5, "algorithm.outer_momentum": 0.5, "lr": 0.05},
}
"""What differs from the task; the rules themselves have tests of their own."""


def main() -> None:
    found = {}
    task = load_task(str(TASK))
    with un.connect() as comm:
        for name in sys.argv[2:]:
            config = TrainConfig(
                "", changes={"epochs": 15, **CHANGES[name]}, algorithm=name, out=f"{sys.argv[1]}-{name}", quiet=True
            )
            found[name] = execute(config, comm, task=task).summary["metrics"]["test_accuracy"]
        Path(f"{sys.argv[1]}.{comm.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
