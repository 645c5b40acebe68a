"""What `horovod.keras.elastic` gives."""

from unisono.horovod._impl.keras.elastic_state import (
    CommitStateCallback,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    run,
)

TensorFlowKerasState = KerasState
"""The name that it has in Horovod where Keras runs on TensorFlow."""

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
