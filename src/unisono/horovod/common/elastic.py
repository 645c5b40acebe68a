"""What `from horovod.common.elastic import ...` gives."""

from unisono.horovod._impl.elastic.elastic_loop import run_fn
from unisono.horovod._impl.elastic.surviving_state import ObjectState, State

__all__ = ["ObjectState", "State", "run_fn"]
