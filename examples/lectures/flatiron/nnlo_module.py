"""A module of NNLO's form, made a task of Unisono by its last lines; one driver trains it, the other searches for its settings.

    python examples/lectures/flatiron/prepare.py                                  # once: writes the HDF5 files

    mpirun -np 3 unisono train examples/lectures/flatiron/nnlo_module.py --algorithm downpour
    mpirun -np 13 unisono tune examples/lectures/flatiron/nnlo_module.py --algorithm downpour --workers 6 --folds 2 --trials 10

Without MPI write `-n 3` or `-n 13` at the end instead. The first has one server and two workers, and `easgd` and `gem` are other
algorithms of this kind. The second has one coordinator and two blocks of six processes, of which one serves; `space` says what is
searched, and the folds are made from the training files.

Options for long jobs: `--monitor` (CPU, GPU and memory), `--timeline` (what each process does when), `--checkpoint-every 10m --out
runs/digits`. The same command resumes, so one job script serves until the training is done.

Older practice: NNLO finds the six functions by their names. Unisono does not yet: `data` and `task` hand them over. The channels
of an image come last now. Files are sorted: file systems list them in any order, and all processes must mean the same ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import keras
from keras import layers

import unisono as un

FILES = sorted(Path("runs/lectures/nnlo").glob("digits_*.h5"))
NUM_TRAINING_FILES = 7 * len(FILES) // 10


def get_name() -> str:
    return "digits"


def get_model(width: Annotated[int, un.Range(16, 128, log=True)] = 64) -> Any:
    features = [keras.Input((8, 8, 1)), layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    return keras.Sequential([*features, layers.Dense(width, activation="relu"), layers.Dense(10, activation="softmax")])


def get_train() -> list[Path]:
    return FILES[:NUM_TRAINING_FILES]


def get_val() -> list[Path]:
    return FILES[NUM_TRAINING_FILES:]


def get_features() -> tuple[str, Callable[[Any], Any]]:
    """The array in the files, and what is done to it: the pixels are centred."""
    return "features", lambda images: images - 0.5


def get_labels() -> str:
    return "labels"


def data() -> un.Splits:
    name, adapt = get_features()
    train, val = (un.HDF5(files, inputs=name, targets=get_labels()).map_inputs(adapt) for files in (get_train(), get_val()))
    return un.Splits(train=train, validation=val)


task = un.Task(
    name=get_name(),
    model=get_model,
    data=data,
    loss="categorical_crossentropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.003,
    global_batch=50,
    epochs=5,
    space={"lr": un.Range(0.0003, 0.03, log=True)},
)
