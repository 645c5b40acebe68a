"""What `import horovod.keras as hvd` gives, with Keras 3 on any of its backends.

import unisono.horovod.keras as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, loss)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from unisono.horovod._impl.exceptions import HorovodInternalError as HorovodInternalError
from unisono.horovod._impl.job.basics import *
from unisono.horovod._impl.job.process_sets import *
from unisono.horovod._impl.keras.argument_order import DistributedOptimizer as DistributedOptimizer
from unisono.horovod._impl.keras.argument_order import PartialDistributedOptimizer as PartialDistributedOptimizer
from unisono.horovod._impl.keras.compression import Compression as Compression
from unisono.horovod._impl.keras.old_names import init as init
from unisono.horovod._impl.keras.replicas import broadcast_global_variables as broadcast_global_variables
from unisono.horovod._impl.keras.replicas import broadcast_variables as broadcast_variables
from unisono.horovod._impl.keras.saved_models import load_model as load_model
from unisono.horovod._impl.keras.value_operations import *
from unisono.horovod._impl.torch.object_exchange import allgather_object as allgather_object
from unisono.horovod._impl.torch.object_exchange import broadcast_object as broadcast_object
from unisono.horovod._impl.torch.submission import Adasum as Adasum
from unisono.horovod._impl.torch.submission import Average as Average
from unisono.horovod._impl.torch.submission import Sum as Sum


def __getattr__(name: str) -> _Any:
    """Keras itself is imported with the first callback, not before the program does."""
    if name in ("callbacks", "elastic"):
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
