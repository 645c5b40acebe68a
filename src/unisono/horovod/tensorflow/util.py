"""What `from horovod.tensorflow.util import ...` gives."""

from unisono.horovod._impl.tensorflow.function_tracing import executing_eagerly as _executing_eagerly

__all__ = ["_executing_eagerly"]
