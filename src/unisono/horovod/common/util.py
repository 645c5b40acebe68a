"""What `from horovod.common.util import ...` gives."""

from unisono.horovod._impl.common_functions import *
from unisono.horovod._impl.common_functions import _cache as _cache
