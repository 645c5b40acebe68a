"""Runs checks one after another on all ranks and says for each how it ended; a check that fails ends its rank."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import unisono.horovod.torch as hvd

Check = Callable[[], None]


def run(checks: dict[str, Check]) -> None:
    """Collective. The last argument of the program may name one check."""
    chosen = {name: check for name, check in checks.items() if name in sys.argv[1:]} or checks
    hvd.init(process_sets="dynamic")
    for name, check in chosen.items():
        began = time.monotonic()
        try:
            check()
        except BaseException:  # noqa: BLE001 -- whatever it is, it is shown and ends the rank
            print(f"\nrank {hvd.rank()}: {name}: failed\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        print(f"\nrank {hvd.rank()}: {name}: ok ({time.monotonic() - began:.2f} s)", flush=True)
        hvd.barrier()
    hvd.shutdown()


def checks_of(module: dict[str, object]) -> dict[str, Check]:
    """The functions of a program that are called check_..., by the rest of their names."""
    return {name.removeprefix("check_"): one for name, one in module.items() if name.startswith("check_") and callable(one)}


@contextmanager
def raises(kind: type[BaseException] | tuple[type[BaseException], ...], *words: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"{kind} was not raised")
