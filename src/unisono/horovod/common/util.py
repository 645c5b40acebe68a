"""What `from horovod.common.util import ...` gives."""

from unisono.horovod._impl.common_functions import (
    _cache,
    ccl_built,
    check_extension,
    check_installed_version,
    ddl_built,
    extension_available,
    gloo_built,
    gpu_available,
    is_iterable,
    is_version_greater_equal_than,
    mpi_built,
    nccl_built,
    num_rank_is_power_2,
    split_list,
)

__all__ = [
    "_cache",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]
