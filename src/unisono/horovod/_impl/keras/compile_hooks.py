"""Hooks for decisions of `model.compile` that concern the optimiser: XLA, and the scaling of losses in mixed precision."""

from __future__ import annotations

import functools
from typing import Any

from unisono.horovod._impl.keras.reduced_updates import ReducedUpdates, inner_of, refuse_pickles
from unisono.horovod._impl.keras.step_backend import backend_name
from unisono.horovod._impl.launching.import_alias import is_in_force


def watch_compile() -> None:
    """Checks the models of this process after each `compile` from now on. Keras has no hook for optimisers. Local, idempotent."""
    import keras

    # Where it is defined: Keras asks whether a model has a `compile` other than that one.
    owner: Any = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    plain = owner.compile
    if getattr(plain, "checks_optimizer", False):
        return

    @functools.wraps(plain)
    def compile_and_check(model: Any, *args: Any, **kwargs: Any) -> None:
        if is_in_force():  # a program of Keras 2, told by Horovod's examples to give it; it changes nothing here
            kwargs.pop("experimental_run_tf_function", None)
        plain(model, *args, **kwargs)
        check_compiled(model, insists=kwargs.get("jit_compile") is True)

    compile_and_check.checks_optimizer = True  # type: ignore[attr-defined]
    owner.compile = compile_and_check


def check_compiled(model: Any, insists: bool = False) -> None:
    """Adapts a compiled model with a distributed optimiser. `insists`: XLA was asked for by name. Local."""
    optimizer: Any = getattr(model, "optimizer", None)
    inner: Any = inner_of(optimizer)
    if not isinstance(inner, ReducedUpdates):
        return
    if inner is not optimizer:
        agree_on_finite(type(optimizer))
    if backend_name() == "tensorflow" and model.jit_compile and inner._transport.is_needed:
        if insists:
            raise ValueError(
                "jit_compile=True: XLA of TensorFlow cannot compile a step that talks to other ranks (model.compile with "
                "hvd.DistributedOptimizer); leave jit_compile out, or run Keras on JAX"
            )
        model.jit_compile = False


def agree_on_finite(kind: type | None = None) -> None:
    """Makes every `LossScaleOptimizer`, or those of this class, around a distributed optimiser skip a step on all ranks alike, if a
    gradient is not finite on any; and refuses to copy it as a plain one. It changes the class, as a program may wrap a distributed
    optimiser and never `compile`. Local, idempotent."""
    from keras.optimizers import LossScaleOptimizer

    owner: Any = next(one for one in (kind or LossScaleOptimizer).__mro__ if "check_finite" in vars(one))
    plain = owner.check_finite
    if getattr(plain, "asks_all_ranks", False):
        return

    @functools.wraps(plain)
    def check_finite(self: Any, grads: Any) -> Any:
        found, inner = plain(self, grads), self.inner_optimizer
        asks = isinstance(inner, ReducedUpdates) and not inner._turn.is_done
        return inner._transport.all_agree(found) if asks else found

    check_finite.asks_all_ranks = True  # type: ignore[attr-defined]
    owner.check_finite = check_finite
    plain_reduce = owner.__reduce__

    def __reduce__(self: Any) -> Any:
        """Refuses pickles and copies, which Keras makes in the same way: they would be plain optimisers."""
        if isinstance(self.inner_optimizer, ReducedUpdates):
            refuse_pickles(self)
        return plain_reduce(self)

    owner.__reduce__ = __reduce__
