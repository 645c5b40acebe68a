"""What `horovod.tensorflow.functions` gives."""

from unisono.horovod._impl.tensorflow.object_exchange import allgather_object, broadcast_object, broadcast_object_fn
from unisono.horovod._impl.tensorflow.variable_broadcast import broadcast_variables

__all__ = ["broadcast_variables", "broadcast_object", "broadcast_object_fn", "allgather_object"]
