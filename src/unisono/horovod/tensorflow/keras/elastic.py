"""What `horovod.tensorflow.keras.elastic` gives."""

from unisono.horovod.keras.elastic import *
