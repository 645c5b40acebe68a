"""Names of operations in graphs. A graph is run many times, so its operations have names that stay, and no two of them one."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

_USED = "unisono_horovod_names"
"""The collection of a graph that holds the names given out in it."""


def name_for(kind: str, name: str | None, like: Any, ignore_name_scope: bool = False) -> str | None:
    """Local: the name of an operation on the tensor `like`; None where nothing was traced, so that it is numbered.

    Ranks trace the same program, so they find the same names, in whatever order the operations are then run.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    wanted = name or f"Horovod{kind}_{_tensor_name(like)}"
    scope = "" if ignore_name_scope else graph.get_name_scope()
    full = re.sub(r"[^a-zA-Z0-9_/.]", "_", f"{scope}/{wanted}" if scope else wanted)
    return _not_used_before(full, _outermost(graph))


def _tensor_name(like: Any) -> str:
    try:
        return str(like.name)
    except AttributeError:  # a value from outside of the graph
        return "captured"


def _outermost(graph: Any) -> Any:
    """Branches of a condition are graphs of their own, and run as parts of what is around them."""
    outside_is_eager = tf.compat.v1.executing_eagerly_outside_functions()
    outer = getattr(graph, "outer_graph", None)
    while outer is not None and (hasattr(outer, "outer_graph") or not outside_is_eager):
        graph, outer = outer, getattr(outer, "outer_graph", None)
    return graph


def _not_used_before(name: str, graph: Any) -> str:
    used = graph.get_collection_ref(_USED)
    found, number = name, 0
    while found in used:
        number += 1
        found = f"{name}_{number}"
    used.append(found)
    return found
