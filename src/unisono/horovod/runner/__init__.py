"""What `from horovod.runner import run` gives."""

from unisono.horovod._impl.launching.run_function import run

__all__ = ["run"]
