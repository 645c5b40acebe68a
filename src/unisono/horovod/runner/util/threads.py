"""What `horovod.runner.util.threads` gives."""

from unisono.horovod._impl.launching.in_thread import in_thread

__all__ = ["in_thread"]
