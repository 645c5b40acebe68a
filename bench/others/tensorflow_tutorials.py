"""The three tutorials of tf.distribute with several workers, moved by another strategy; against TensorFlow's default strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from bench.others.keras_io import LIMIT, NUM_TRAIN, prepare_keras, recorded_fits, scope
from bench.others.program import SEED, WEIGHTS, Change, Found, Program, compiled

UNSEEDED = "TF_CONFIG, and no seeds"
FOLDER = "site/en/tutorials/distribute"
PICTURES = f"{NUM_TRAIN} random pictures"
STRATEGY = r"tf\.distribute\.(Multi\w+|Mirrored\w+)\(\)"
PLAIN: Change = (STRATEGY, r"strategy_of('\1')")
KERAS_3 = ((r"tf\.keras\.losses\.Reduction\.NONE", "None"), (r"reset_states\(\)", "reset_state()"))
"""Two names that Keras 3 no longer has."""
EAGER: Change = (r"@tf\.function\n(def (?:distributed_)?train_\w+|def distributed_\w+)", r"\1")
OWN_ROWS = "each worker's rows by `dataset.map`; the functions around `strategy.run` without `tf.function`; `global_batch_size`"
AVERAGE: Change = (r"compute_average_loss\(per_example_loss\)", "compute_average_loss(per_example_loss, global_batch_size=32)")


def _program(name: str, file: str, moved: str, **more: Any) -> Program:
    given = {"repository": "tensorflow/docs", "environment": {"KERAS_BACKEND": "tensorflow"}, "limit": LIMIT, **more}
    return Program(family="tensorflow_tutorials", name=name, path=f"{FOLDER}/{file}.ipynb", stand_in=PICTURES, moved=moved, **given)


CUSTOM = _program(
    "custom_training",
    "custom_training",
    "`un.keras.MirroredStrategy`",
    edits=[
        PLAIN,
        *KERAS_3,
        (r"BATCH_SIZE_PER_REPLICA \* strategy\.num_replicas_in_sync", "32"),
        (r"\.shuffle\(BUFFER_SIZE\)", ""),
        (r"EPOCHS = 10", "EPOCHS = 1"),
        (r"range\(10\)", "range(2)"),
    ],
)
FIT = _program(
    "multi_worker_with_keras",
    "multi_worker_with_keras",
    "`un.keras.MultiWorkerMirroredStrategy`",
    edits=[PLAIN, (r"steps_per_epoch=70", "steps_per_epoch=3"), (r"per_worker_batch_size = 64", "per_worker_batch_size = 16")],
    needs="TF_CONFIG",
)
LOOP = _program(
    "multi_worker_with_ctl",
    "multi_worker_with_ctl",
    "`un.keras.MultiWorkerMirroredStrategy`",
    edits=[
        PLAIN,
        *KERAS_3,
        (r"per_worker_batch_size = 64", "per_worker_batch_size = 16"),
        (r"num_epochs = 3", "num_epochs = 2"),
        (r"num_steps_per_epoch *= *70", "num_steps_per_epoch = 3"),
    ],
    needs="TF_CONFIG",
)

PROGRAMS = [
    CUSTOM,
    replace(
        CUSTOM,
        name="custom_training, own rows",
        moved=f"{CUSTOM.moved}; {OWN_ROWS}",
        edits=[*CUSTOM.edits, AVERAGE],
        limit=1e-4,
        move=[(r"strategy\.experimental_distribute_dataset\((\w+)\)", r"own_rows(\1)"), EAGER],
    ),
    replace(FIT, needs=UNSEEDED),
    replace(
        replace(FIT, needs=UNSEEDED),
        name="multi_worker_with_keras, seeded",
        moved=f"{FIT.moved}; the shuffle has a seed",
        edits=[*FIT.edits, (r"shuffle\(60000\)", "shuffle(60000, seed=1)")],
    ),
    LOOP,
    replace(
        LOOP,
        name="multi_worker_with_ctl, own rows",
        moved=f"{LOOP.moved}; {OWN_ROWS}; the shuffle has a seed; the rank comes from TF_CONFIG",
        edits=[
            *LOOP.edits,
            AVERAGE,
            (r"\.shuffle\(60000\)", ""),
            (
                r"(?s)strategy\.distribute_datasets_from_function\(.*?input_context\)\)",
                "own_rows(mnist.mnist_dataset(32).batch(32))",
            ),
            (r"strategy\.cluster_resolver\.task_type", "'worker'"),
            (r"strategy\.cluster_resolver\.task_id", "tf_config['task']['index']"),
            (r"strategy\.cluster_resolver\.cluster_spec\(\)", "tf.train.ClusterSpec(tf_config['cluster'])"),
        ],
        move=[EAGER],
        limit=1e-4,
    ),
]


class Seeded:
    """A strategy of TensorFlow whose `scope` seeds the generators, as that of Unisono does."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    @contextmanager
    def scope(self) -> Iterator[None]:
        with scope(is_moved=False), self._strategy.scope():
            yield


def run(program: Program, texts: dict[str, str], is_moved: bool) -> Found:
    """Collective when moved, blocking: histories, the weights of the model, and the losses and metrics that the loops print."""
    import tensorflow as tf

    import unisono as un

    prepare_keras()
    found: Found = {}
    made: list[Any] = []

    def strategy_of(name: str) -> Any:
        made.append(getattr(un.keras, name)(seed=SEED) if is_moved else Seeded(tf.distribute.get_strategy()))
        return made[-1]

    def own_rows(dataset: Any) -> Any:
        if not is_moved:
            return dataset
        comm = made[-1].comm
        return dataset.map(lambda x, y: (x[comm.rank :: comm.size], y[comm.rank :: comm.size]))

    names: dict[str, Any] = {"__name__": "__main__", "strategy_of": strategy_of, "own_rows": own_rows}
    seeds = nullcontext() if program.needs == UNSEEDED else scope(is_moved=False)  # the strategy is the program's own
    with recorded_fits(found, note_start=not is_moved), seeds:
        exec(compiled(program, texts["main.py"]), names)
    model: Any = names.get("model", names.get("multi_worker_model"))
    if not any(name.startswith(WEIGHTS) for name in found):
        found |= {f"{WEIGHTS} {place}": one for place, one in enumerate(model.get_weights())}
    for name in ("train_loss", "total_loss", "average_train_loss", "test_loss", "test_accuracy", "eval_accuracy"):
        if (value := names.get(name)) is not None:
            found[name] = np.asarray(value.result() if hasattr(value, "result") else value, np.float64)
    return found
