"""Heavy packages of a process that is ours: imported to stay, so that the garbage collector need not look at them."""

from __future__ import annotations

import gc
import importlib
import sys


def import_to_stay(module: str) -> None:
    """Local: imports a module that brings PyTorch, and keeps the garbage collector away from all that as long as this process
    lives. It would find nothing, and take half a second of every process: while PyTorch is imported, in each of its full
    collections, and three times at the end. Objects that exist later, as those of users, are collected as ever."""
    if "torch" in sys.modules:  # by a program that calls a verb, whose objects these are
        importlib.import_module(module)
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module(module)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
