"""What `from horovod.torch.mpi_ops import ...` gives."""

from unisono.horovod._impl.common_functions import gpu_available as gpu_available
from unisono.horovod._impl.common_functions import num_rank_is_power_2 as num_rank_is_power_2
from unisono.horovod._impl.exceptions import HorovodInternalError as HorovodInternalError
from unisono.horovod._impl.job.basics import *
from unisono.horovod._impl.job.basics_object import HorovodBasics as HorovodBasics
from unisono.horovod._impl.job.process_sets import *
from unisono.horovod._impl.job.process_sets import init as init
from unisono.horovod._impl.torch.blocking_calls import *
from unisono.horovod._impl.torch.compression import Compression as Compression
from unisono.horovod._impl.torch.operations import *
from unisono.horovod._impl.torch.submission import *
from unisono.horovod._impl.torch.submission import choose_op as handle_average_backwards_compatibility  # noqa: F401

_basics = HorovodBasics()
