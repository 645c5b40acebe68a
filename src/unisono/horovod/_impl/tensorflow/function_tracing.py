"""What `tf.function` makes of our functions: it calls them as they are, and XLA does not compile them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # TensorFlow tells it nowhere else

Function = TypeVar("Function", bound=Callable[..., object])


def without_autograph(function: Function) -> Function:
    """Local: not rewritten by AutoGraph, which takes a long time for it and finds nothing to do."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


def graph_list(graph: Any, what: str) -> list[Any]:
    """Local: a list that belongs to this graph alone. Collections are copied into the graphs of functions inside, and shared with
    those of branches."""
    name = f"_unisono_horovod_{what}"
    if not hasattr(graph, name):
        setattr(graph, name, [])
    found: list[Any] = getattr(graph, name)
    return found


def executing_eagerly() -> bool:
    """Local: whether TensorFlow computes at once, and not in a graph."""
    return bool(tf.executing_eagerly())


def refuse_xla(what: str) -> None:
    """`ValueError` while a function that XLA will compile is traced: its own error would not tell what to do."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"XLA cannot compile a step that waits for other ranks ({what} inside jit_compile); leave jit_compile=True out of "
            "tf.function; with model.compile of Keras, which turns it on by itself on GPUs, give jit_compile=False"
        )
