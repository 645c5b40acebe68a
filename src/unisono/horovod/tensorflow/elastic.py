"""What `horovod.tensorflow.elastic` gives."""

from unisono.compat.horovod.keras.elastic import run
from unisono.compat.horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
