"""What `horovod.runner.util.threads` gives."""

from unisono.compat.horovod.launching.threads import in_thread

__all__ = ["in_thread"]
