"""What `from horovod.common.process_sets import ...` gives."""

from unisono.horovod._impl.job.process_sets import *
