"""What `from horovod.runner import run` gives."""

from unisono.compat.horovod.launching.function import run

__all__ = ["run"]
