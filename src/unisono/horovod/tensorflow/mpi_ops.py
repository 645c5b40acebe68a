"""What `horovod.tensorflow.mpi_ops` gives: the operations and who is there."""

from unisono.horovod._impl.common_functions import gpu_available as gpu_available
from unisono.horovod._impl.common_functions import num_rank_is_power_2 as num_rank_is_power_2
from unisono.horovod._impl.job.basics import *
from unisono.horovod._impl.job.process_sets import *
from unisono.horovod._impl.tensorflow.blocking_calls import allgather as allgather
from unisono.horovod._impl.tensorflow.blocking_calls import alltoall as alltoall
from unisono.horovod._impl.tensorflow.blocking_calls import broadcast as broadcast
from unisono.horovod._impl.tensorflow.blocking_calls import grouped_allgather as grouped_allgather
from unisono.horovod._impl.tensorflow.blocking_calls import join as join
from unisono.horovod._impl.tensorflow.old_names import init as init
from unisono.horovod._impl.tensorflow.rank_queries import *
from unisono.horovod._impl.tensorflow.variable_broadcast import broadcast_ as broadcast_
from unisono.horovod._impl.torch.submission import *

check_num_rank_power_of_2 = num_rank_is_power_2
