"""What `horovod.tensorflow.elastic` gives."""

from unisono.compat.horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
