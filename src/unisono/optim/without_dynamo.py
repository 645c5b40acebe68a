"""Optimizers of PyTorch without its compiler's front end, `torch._dynamo`, which takes a second to load in every process."""

from __future__ import annotations

import sys
from types import FunctionType

from torch.optim import Optimizer

MARK = "__dynamo_disable"
"""Where PyTorch (`torch/_compile.py`) keeps the form of a function that its compiler leaves alone. At the first call it loads the
compiler to make that form; a training that compiles nothing can use the function as it is."""


def leave_out_dynamo() -> None:
    """Local: lets optimizers be made, saved and loaded without `torch._dynamo`; their own `step`, which a training seldom calls,
    still loads it. Has no effect on results, nor where it is loaded already; a PyTorch that keeps the form elsewhere loads it."""
    if "torch._dynamo" in sys.modules:
        return
    for method in vars(Optimizer).values():
        if isinstance(method, FunctionType) and method.__code__.co_filename.endswith("_compile.py"):
            plain = vars(method)["__wrapped__"]
            plain.__dict__.setdefault(MARK, plain)
