"""A function in a thread of its own, as tests and callbacks written for Horovod start one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


def in_thread(
    target: Callable[..., Any], args: tuple[Any, ...] = (), name: str | None = None, daemon: bool = True, silent: bool = False
) -> threading.Thread:
    """Starts the function in a thread and returns the thread. `silent`: exceptions of the function are not shown. Local, not
    blocking."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple; received a {type(args).__name__}")

    def quietly() -> None:
        with contextlib.suppress(Exception):
            target(*args)

    thread = threading.Thread(target=quietly) if silent else threading.Thread(target=target, args=args)
    thread.name, thread.daemon = name or thread.name, daemon
    thread.start()
    return thread
