r"""A model as JSON and data as lists of files: the task behind a command that names all of them.

    python examples/lectures/flatiron/prepare.py                 # once: writes HDF5 files
    python examples/lectures/flatiron/json_and_lists.py          # once: writes a model and two lists beside them

    cd runs/lectures/nnlo
    mpirun -np 3 unisono train ../../../examples/lectures/flatiron/json_and_lists.py --algorithm downpour \
        --set model.file=model.json --set data.train=train.list --set data.val=val.list \
        --set loss=categorical_crossentropy --epochs 5

Older practice: NNLO's training driver took these as --model, --train, --val and --loss. Here an argument of `model` or `data` is
set by `--set`, and so is a field of the task.
"""

from pathlib import Path
from typing import Any

import keras

import unisono as un


def model(file: str = "model.json") -> Any:
    return keras.models.model_from_json(Path(file).read_text())


def data(train: str = "train.list", val: str = "val.list") -> un.Splits:
    def source(listed: str) -> un.Source:
        """Names in a list count from its folder."""
        files = [Path(listed).parent / name for name in Path(listed).read_text().split()]
        return un.HDF5(files, inputs="features", targets="labels")

    return un.Splits(train=source(train), validation=source(val))


task = un.Task(
    model=model, data=data, loss="categorical_crossentropy", metrics=("accuracy",), optimizer="adam", lr=0.001, global_batch=50
)


def main() -> None:
    folder = Path("runs/lectures/nnlo")
    files = sorted(path.name for path in folder.glob("digits_*.h5"))
    (folder / "train.list").write_text("\n".join(files[:7]))
    (folder / "val.list").write_text("\n".join(files[7:]))
    layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")]
    (folder / "model.json").write_text(keras.Sequential([keras.Input((8, 8, 1)), *layers]).to_json(indent=2))


if __name__ == "__main__":
    main()
