"""One elastic job of which 30 workers are killed at random moments: it goes on after each, loses no sample and hangs nowhere."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ranks.test_horovod_elastic import Job
from tests.system.fork_server import ForkServer
from tests.system.processes import is_running, within

pytestmark = pytest.mark.soak

NUM_KILLS = 30
LONGEST_LIVES_S = (0.2, 1.0, 3.0)
"""Between two kills, at most; one of these for each job."""
STEP_LIMIT_S = 120.0


@pytest.mark.parametrize("hosts", [[["localhost", 4]], [["localhost", 2], ["127.0.0.1", 2]]], ids=["one-host", "two-hosts"])
def test_many_workers_are_killed(hosts: list[list[object]], seeds: Iterator[int], fork_server: ForkServer, tmp_path: Path) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        plan = {"num_proc": 4, "min_num_proc": 1, "hosts": hosts}
        with Job(fork_server, folder, plan, until=str(folder / "enough")) as job:
            kill_many(job, random.Random(seed))
            (folder / "enough").touch()
            ended = job.finish()
            fates = re.findall(r"unisono: worker \d+ \(.*?\),? (.*?)[;\n]", ended.output)
            assert set(fates) == {"exited with code 137"}, f"others died too: {ended}"


def kill_many(job: Job, draw: random.Random) -> None:
    longest_s = draw.choice(LONGEST_LIVES_S)
    killed: set[int] = set()  # a process takes its time to die, and is still there
    for number in range(NUM_KILLS):
        found = within(STEP_LIMIT_S, lambda: len(holders(job) - killed) > 1 or job.driver.is_over())
        assert found and not job.driver.is_over(), f"nobody goes on after {number} kills: {job.driver.finish(0.0)}\n{job.events()}"
        time.sleep(draw.uniform(0, longest_s))  # the random moment
        # Those that have just started too; but never the last that holds the state, without which there is nothing to go on from.
        alive = {event["pid"] for event in job.events("starts") if is_running(event["pid"])} - killed
        safe = holders(job) - killed
        victims = sorted(alive if len(safe) > 1 else alive - safe)
        if victims:
            victim = draw.choice(victims)
            killed.add(victim)
            with suppress(ProcessLookupError):  # why it ended by itself is told at the end
                os.kill(victim, signal.SIGKILL)


def holders(job: Job) -> set[int]:
    """Who lives and has the state."""
    return {event["pid"] for event in job.events("begins") if is_running(event["pid"])}
