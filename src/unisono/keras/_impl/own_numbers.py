"""Numbers in loops of people's own: inside `strategy.run` a mean over the samples of one worker is refused, and TensorFlow knows
how many workers there are; a metric that was updated there gives the result of all workers elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.keras._impl.own_updates import replaced, sum_over_workers

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
"""Reductions of Keras's losses that divide by the samples at hand."""


@contextmanager
def numbers_of_all(comm: Communicator) -> Iterator[None]:
    """A context in which losses of Keras that are means are refused, and `tf.nn.compute_average_loss` and
    `tf.nn.scale_regularization_loss` divide by the number of workers. Local."""
    from keras.losses import Loss

    plain = Loss.__call__

    def call(loss: Any, *args: Any, **kwargs: Any) -> Any:
        if loss.reduction in MEANS:
            raise UsageError(
                f"the loss {loss.name!r} is a mean over the samples of one worker, but strategy.run sums the gradients of all "
                "workers; make it with reduction=None, and divide its sum by the number of samples of all workers"
            )
        return plain(loss, *args, **kwargs)

    with ExitStack() as held:
        held.enter_context(replaced(Loss, "__call__", call))
        if (tensorflow := sys.modules.get("tensorflow")) is not None:  # not loaded for it: Keras may run on another backend
            kind = type(tensorflow.distribute.get_strategy())
            held.enter_context(replaced(kind, "num_replicas_in_sync", comm.size))
        yield


@contextmanager
def metrics_of_all(comm: Communicator, is_running: Callable[[], bool]) -> Iterator[None]:
    """A context: metrics of Keras that are made in it, and updated while `is_running`, give elsewhere the result of their sums over
    all workers, which is then collective."""
    from keras import Metric, StatelessScope

    plain, is_summing = Metric.__init__, False

    def make(metric: Any, *args: Any, **kwargs: Any) -> None:
        plain(metric, *args, **kwargs)
        is_own_loop = False

        def update_state(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_own_loop
            is_own_loop = is_own_loop or is_running()
            return type(metric).update_state(metric, *args, **kwargs)

        def result() -> Any:
            nonlocal is_summing
            if not is_own_loop or is_summing or is_running() or comm.size == 1:
                return type(metric).result(metric)
            is_summing = True  # also for the metrics that this one consists of
            try:
                sums = sum_over_workers(comm, [one.value for one in metric.variables])
                with StatelessScope(list(zip(metric.variables, sums, strict=True))):
                    return type(metric).result(metric)
            finally:
                is_summing = False

        object.__setattr__(metric, "update_state", update_state)
        object.__setattr__(metric, "result", result)

    with replaced(Metric, "__init__", make):
        yield
