"""What `from horovod.common.elastic import ...` gives."""

from unisono.compat.horovod.elastic.loop import run_fn
from unisono.compat.horovod.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run_fn"]
