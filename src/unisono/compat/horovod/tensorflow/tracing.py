"""What `tf.function` makes of our functions: it calls them as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., object])


def as_written(function: Function) -> Function:
    """Local: not rewritten by AutoGraph, which takes a long time for it and finds nothing to do."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


def executing_eagerly() -> bool:
    """Local: whether TensorFlow computes at once, and not in a graph."""
    return bool(tf.executing_eagerly())
