"""Programs of TensorFlow 1 whose `import tensorflow as tf` gives TensorFlow 2: what they ask for and do not find tells them which
line to change. And programs of TensorFlow 2 and Keras 2, which call `optimizer.variables()`, run as they are. Only where `import
horovod` means us, never by an import alone: it changes modules that are not ours."""

from __future__ import annotations

import functools
import sys
from typing import Any

from unisono.errors import UsageError
from unisono.horovod._impl.job import process_sets as process_sets_module
from unisono.horovod._impl.keras.old_names import accept_calls_of_variables
from unisono.horovod._impl.launching.import_alias import is_in_force

PARTS = ("", "train", "summary")
"""Modules of TensorFlow that old programs look into: the first one is all of it."""


class OldName(UsageError, AttributeError):
    """A name of TensorFlow 1. It is an `AttributeError` too, so that `hasattr` still says that there is none."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Begins the communication, as in `process_sets.py`; accepts names of Keras 2, and refuses those of TensorFlow 1 with the lines
    to write instead. Collective over all processes of the job, blocking."""
    process_sets_module.init(comm, process_sets)
    tensorflow: Any = sys.modules.get("tensorflow")
    if is_in_force() and tensorflow is not None:
        explain_old_names(tensorflow)
        if "keras" in sys.modules:  # TensorFlow loads it, where it is installed
            accept_calls_of_variables()


def explain_old_names(tensorflow: Any) -> None:
    """Adds explanations for missing names. Existing names are left alone, and so is a module that already answers for missing ones.
    Local, idempotent."""
    for part in PARTS:
        module = getattr(tensorflow, part) if part else tensorflow
        if "__getattr__" not in vars(module):
            module.__getattr__ = functools.partial(_explain_missing, tensorflow, part)


def _explain_missing(tensorflow: Any, part: str, name: str) -> Any:
    """Raises `OldName`, with the lines to write instead, for a name of TensorFlow 1; `AttributeError` for any other."""
    old = tensorflow.compat.v1
    full = f"tf.{part}.{name}" if part else f"tf.{name}"
    if name.startswith("_") or not hasattr(getattr(old, part) if part else old, name):
        raise AttributeError(f"module 'tensorflow' has no attribute {full.removeprefix('tf.')!r}")
    raise OldName(
        f"{full} is of TensorFlow 1, and this is TensorFlow {tensorflow.__version__}; instead of `import tensorflow as tf` write\n"
        "    import tensorflow.compat.v1 as tf; tf.disable_v2_behavior()\n"
    )
