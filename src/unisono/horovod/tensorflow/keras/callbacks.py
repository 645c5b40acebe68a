"""What `horovod.tensorflow.keras.callbacks` gives."""

from unisono.horovod._impl.keras.fit_callbacks import BestModelCheckpoint, BroadcastGlobalVariablesCallback, MetricAverageCallback
from unisono.horovod._impl.keras.rate_callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
