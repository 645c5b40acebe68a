"""What `tf.function` does with our functions: AutoGraph leaves them as they are, and XLA must not compile them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # TensorFlow tells it nowhere else

Function = TypeVar("Function", bound=Callable[..., object])


def without_autograph(function: Function) -> Function:
    """Returns the function without conversion by AutoGraph, which would take long and change nothing. Local."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


def graph_list(graph: Any, what: str) -> list[Any]:
    """Returns a list that belongs to this graph alone. (Collections are copied into the graphs of inner functions and shared with
    those of branches.) Local."""
    name = f"_unisono_horovod_{what}"
    if not hasattr(graph, name):
        setattr(graph, name, [])
    found: list[Any] = getattr(graph, name)
    return found


def executing_eagerly() -> bool:
    """Whether TensorFlow computes at once, and not in a graph. Local."""
    return bool(tf.executing_eagerly())


def refuse_xla(what: str) -> None:
    """Raises `ValueError` while a function that XLA will compile is traced: the error of XLA would not say what to do."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"XLA cannot compile a step that waits for other ranks ({what} inside jit_compile); leave jit_compile=True out of "
            "tf.function, or give jit_compile=False to model.compile (on GPUs Keras turns it on by default)"
        )
