"""What `from horovod.tensorflow.util import ...` gives."""

from unisono.compat.horovod.tensorflow.tracing import executing_eagerly as _executing_eagerly

__all__ = ["_executing_eagerly"]
