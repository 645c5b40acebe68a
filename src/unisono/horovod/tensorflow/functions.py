"""What `horovod.tensorflow.functions` gives."""

from unisono.compat.horovod.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from unisono.compat.horovod.tensorflow.variables import broadcast_variables

__all__ = ["broadcast_variables", "broadcast_object", "broadcast_object_fn", "allgather_object"]
