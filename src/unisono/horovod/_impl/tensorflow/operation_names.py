"""Names of operations in graphs. A graph is run many times, so its operations have lasting names, each of which occurs once."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph  # TensorFlow tells it nowhere else

from unisono.horovod._impl.tensorflow.function_tracing import graph_list

_GRADIENT = "__backward_"
"""How TensorFlow begins the names of functions that it makes of the gradients of others."""


def name_for(kind: str, name: str | None, like: Any, ignore_name_scope: bool = False) -> str | None:
    """Returns the name of an operation on the tensor `like`; None outside of tracing, so that it is numbered. Local.

    Ranks trace the same program, so they find the same names, in whatever order the operations are then run.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    wanted = name or f"Horovod{kind}_{_tensor_name(like)}"
    scope = "" if ignore_name_scope else graph.get_name_scope()
    full = re.sub(r"[^a-zA-Z0-9_/.]", "_", f"{scope}/{wanted}" if scope else wanted)
    return _unused_name(full, _naming_graph(graph))


def _tensor_name(like: Any) -> str:
    """Returns the name of a tensor; "captured" for a value from outside of the graph."""
    try:
        return str(like.name)
    except AttributeError:  # a value from outside of the graph
        return "captured"


def _naming_graph(graph: Any) -> Any:
    """The graph in which no name occurs twice: that of the function. Not one further out, as a function that was traced before is
    not traced again there, and its names would depend on the first caller, which may differ between ranks.

    Branches and loops are graphs of their own, and run as parts of what is around them. In graphs of TensorFlow 1 and of gradients
    calls run in any order, so the outermost counts; in others `graph_exchange.py` has them run one after another.
    """
    outside_is_eager = tf.compat.v1.executing_eagerly_outside_functions()
    nest, outer = [graph], getattr(graph, "outer_graph", None)
    while outer is not None and (hasattr(outer, "outer_graph") or not outside_is_eager):
        nest.append(outer)
        outer = getattr(outer, "outer_graph", None)
    if not outside_is_eager or any(one.name.startswith(_GRADIENT) for one in nest):
        return nest[-1]
    return next(one for one in nest if not isinstance(one, ControlFlowFuncGraph))


def _unused_name(name: str, graph: Any) -> str:
    """Returns the name, with a number if it is used in this graph already, and notes that it is used."""
    used = graph_list(graph, "names")
    found, number = name, 0
    while found in used:
        number += 1
        found = f"{name}_{number}"
    used.append(found)
    return found
