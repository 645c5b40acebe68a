"""How many workers a verb has: what is refused, and what the launcher is told."""

from __future__ import annotations

from typing import Any

import pytest

from unisono.errors import UsageError
from unisono.launch.worker_options import WorkerOptions


def test_the_launcher_receives_every_option() -> None:
    start = WorkerOptions(workers=3, engine="shm", allreduce="ring", portable="baseline", threads=2, restarts=4)
    told = start.launch_config(("-m", "x"), "job")
    assert (told.program, told.num_local, told.engine, told.allreduce) == (("-m", "x"), 3, "shm", "ring")
    assert (told.portable, told.threads, told.job, told.output_from) == ("baseline", 2, "job", "first")
    assert (told.on_failure, told.max_restarts) == ("restart", 4)
    plain = WorkerOptions(workers=2)
    assert plain.launch_config(("x",), "job").on_failure == "end"
    assert plain.launch_config(("x",), "job", elastic=True).on_failure == "elastic"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": 0}, r"-n \(workers\) must be a whole number of at least 1; received 0"),
        ({"engine": "magic"}, "--engine must be one of auto, single, shm, mpi, gloo, nccl; received 'magic'"),
        ({"allreduce": "tree"}, "--allreduce must be one of auto, ring, recursive_doubling, rabenseifner, node_aware, engine"),
        ({"threads": 5000}, "--threads must be a whole number from 1 to 4096; received 5000"),
        ({"restarts": -1}, "--restarts must be a whole number of at least 0; received -1"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_checked(values: dict[str, Any], message: str) -> None:
    start = WorkerOptions(**values)  # not before: workers of a launcher say it once, together
    with pytest.raises(UsageError, match=message):
        start.check()


def test_the_workers_of_a_launcher_are_counted() -> None:
    WorkerOptions(workers=3).check(3)
    WorkerOptions().check(3)
    with pytest.raises(UsageError, match=r"-n requests 4 workers, but 3 were started; leave -n out, or start 4"):
        WorkerOptions(workers=4).check(3)


def test_restarts_need_workers_to_start_and_a_run_to_resume() -> None:
    WorkerOptions(workers=2, restarts=1).check_restarts("run")
    for start, out, message in (
        (WorkerOptions(restarts=1), "run", "give -n 2 or more"),
        (WorkerOptions(workers=2, restarts=1), None, "--restarts needs --out"),
    ):
        with pytest.raises(UsageError, match=message):
            start.check_restarts(out)
