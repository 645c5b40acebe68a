"""The loop around a training function: synchronise, train; after a loss of workers or a change of hosts, begin again with the
present workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from unisono.horovod._impl.elastic.surviving_state import State
from unisono.horovod._impl.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from unisono.horovod._impl.job.basics import shutdown
from unisono.horovod._impl.job.process_sets import init
from unisono.horovod._impl.job.process_state import PROCESS

Result = TypeVar("Result")


def run_fn(func: Callable[..., Result], reset: Callable[[], object]) -> Callable[..., Result]:
    """Returns a `func(state, ...)` that survives the loss of workers; the returned function is collective and blocking. Local.

    `reset` ends the old communication and begins the new one. After it all ranks take rank 0's state, also if workers only
    left: a worker that is new at the same moment would otherwise wait for a broadcast that nobody sends. A worker may be lost at
    any moment, also while the program's own callbacks talk after a reset.
    """

    @functools.wraps(func)
    def train(state: State, *args: Any, **kwargs: Any) -> Result:
        driver = PROCESS.driver_connection
        again = False
        with driver.listening(state.on_hosts_updated):
            while True:
                try:
                    if again:
                        reset()
                        state.on_reset()
                    state.sync()
                    driver.report_synced()
                    result = func(state, *args, **kwargs)
                    driver.report_finished()
                    return result
                except HorovodInternalError as error:
                    driver.report_failed(str(error))
                    state.restore()
                except HostsUpdatedInterrupt:
                    pass  # all ranks stopped at the same step, so what they hold now is whole
                again = True

    return train


def begin_again() -> None:
    """Ends the communication and starts it again: the usual `reset`. Collective, blocking."""
    shutdown()
    init()


def run(func: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a `func(state, ...)` that survives the loss of workers: the decorator `hvd.elastic.run`, for frameworks whose errors
    need no translation."""
    return run_fn(func, begin_again)
