"""For programs that were written for Horovod: `import unisono.horovod.torch as hvd` instead of `import horovod.torch as hvd`.

Programs that are started by `unisono horovodrun` or `unisono run --horovod` need no change: there `import horovod` leads here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unisono.horovod._impl.interface_version import INTERFACE

if TYPE_CHECKING:
    from unisono.horovod._impl.launching.run_function import run

__version__ = INTERFACE
"""The version of Horovod whose interface this is; programs compare it. Ours is `unisono.__version__`."""

__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: `import horovod` must cost nothing."""
    if name == "run":
        from unisono.horovod._impl.launching.run_function import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
