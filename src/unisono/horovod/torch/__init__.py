"""What `import horovod.torch as hvd` gives.

import unisono.horovod.torch as hvd

hvd.init()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
"""

from unisono.horovod._impl.common_functions import check_extension as check_extension
from unisono.horovod._impl.exceptions import HorovodInternalError as HorovodInternalError
from unisono.horovod._impl.job.basics import *
from unisono.horovod._impl.job.process_sets import *
from unisono.horovod._impl.job.process_sets import init as init
from unisono.horovod._impl.torch.blocking_calls import *
from unisono.horovod._impl.torch.compression import Compression as Compression
from unisono.horovod._impl.torch.distributed_optimizer import DistributedOptimizer as DistributedOptimizer
from unisono.horovod._impl.torch.object_exchange import allgather_object as allgather_object
from unisono.horovod._impl.torch.object_exchange import broadcast_object as broadcast_object
from unisono.horovod._impl.torch.operations import *
from unisono.horovod._impl.torch.replicas import broadcast_optimizer_state as broadcast_optimizer_state
from unisono.horovod._impl.torch.replicas import broadcast_parameters as broadcast_parameters
from unisono.horovod._impl.torch.submission import *
from unisono.horovod._impl.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from unisono.horovod.torch import compression as compression
from unisono.horovod.torch import elastic as elastic
from unisono.horovod.torch import functions as functions
from unisono.horovod.torch import mpi_ops as mpi_ops
from unisono.horovod.torch import optimizer as optimizer
from unisono.horovod.torch import sync_batch_norm as sync_batch_norm
