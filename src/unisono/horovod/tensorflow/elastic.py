"""What `horovod.tensorflow.elastic` gives."""

from unisono.horovod._impl.keras.elastic_state import run
from unisono.horovod._impl.tensorflow.elastic_state import TensorFlowKerasState, TensorFlowState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
