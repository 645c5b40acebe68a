"""What `horovod.tensorflow.keras.callbacks` gives."""

from unisono.compat.horovod.keras.callbacks import BestModelCheckpoint, BroadcastGlobalVariablesCallback, MetricAverageCallback
from unisono.compat.horovod.keras.rates import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
