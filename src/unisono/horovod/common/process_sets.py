"""What `from horovod.common.process_sets import ...` gives."""

from unisono.horovod._impl.job.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
]
