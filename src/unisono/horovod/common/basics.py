"""What `from horovod.common.basics import ...` gives."""

from unisono.horovod._impl.job.basics_object import (
    HorovodBasics,
)

__all__ = [
    "HorovodBasics",
]
