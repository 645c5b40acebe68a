"""What `from horovod.common.basics import ...` gives."""

from unisono.compat.horovod.basics_object import (
    HorovodBasics,
)

__all__ = [
    "HorovodBasics",
]
