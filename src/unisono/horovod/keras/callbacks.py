"""What `horovod.keras.callbacks` gives."""

from unisono.compat.horovod.keras.callbacks import BestModelCheckpointOfKeras as BestModelCheckpoint
from unisono.compat.horovod.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from unisono.compat.horovod.keras.rates import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
