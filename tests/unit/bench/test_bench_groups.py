"""Groups of processes that the benchmarks keep: one world or none, a dead rank is named, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.groups import ROOT, Conductor, GroupFailed, Launch, RankSlot
from tests.system.processes import is_running, plain_environment, within

RANK = """
import os, sys, time
from bench.ranks.slot import attend

rank, size = int(sys.argv[3]), int(sys.argv[4])

def fail():
    raise RuntimeError("not today")

attend(rank, size, {}, {"pid": os.getpid, "fail": fail, "add": lambda to: to + rank, "hang": lambda: time.sleep(600)})
"""

INTERRUPTED = """
import sys
from pathlib import Path
from bench.groups import Conductor, Launch

def start(num_ranks, slot):
    return [Launch([sys.executable, "-c", Path(sys.argv[1]).read_text(), *slot.arguments, str(rank), "2"]) for rank in range(2)]

with Conductor() as conductor:
    group = conductor.start("some", 2, start)
    print(*group.ask("pid"), flush=True)
    group.ask("hang")
"""


def ranks(size_of: Callable[[int], int] = lambda num_ranks: num_ranks) -> Callable[[int, RankSlot], list[Launch]]:
    def start(num_ranks: int, slot: RankSlot) -> list[Launch]:
        program = [sys.executable, "-c", RANK, *slot.arguments]
        return [Launch([*program, str(rank), str(size_of(num_ranks))]) for rank in range(num_ranks)]

    return start


def test_all_ranks_answer_in_their_order_and_leave_at_the_end() -> None:
    with Conductor() as conductor:
        group = conductor.start("three", 3, ranks())
        assert group.ask("add", to=10) == [10, 11, 12]
        numbers = group.ask("pid")
        assert all(is_running(number) for number in numbers)
        assert group.cpu_s() > 0
    assert not any(is_running(number) for number in numbers)


def test_processes_that_are_not_one_world_are_refused() -> None:
    with Conductor() as conductor, pytest.raises(GroupFailed, match="not one world of 2 ranks"):
        conductor.start("alone", 2, ranks(lambda _: 1))


def test_a_start_that_fails_shows_what_was_printed() -> None:
    def start(num_ranks: int, slot: RankSlot) -> list[Launch]:
        return [Launch([sys.executable, "-c", "raise SystemExit('no such luck')"])]

    with Conductor() as conductor, pytest.raises(GroupFailed, match=r"(?s)ended with \[1\].*no such luck"):
        conductor.start("broken", 1, start)


def test_an_error_of_a_rank_is_shown() -> None:
    with Conductor() as conductor:
        group = conductor.start("failing", 2, ranks())
        with pytest.raises(GroupFailed, match=r"(?s)failed on 2 of 2 ranks.*not today"):
            group.ask("fail")


def test_a_rank_that_dies_is_named() -> None:
    with Conductor() as conductor:
        group = conductor.start("mortal", 2, ranks())
        victim = psutil.Process(group.ask("pid")[1])
        victim.kill()
        victim.wait(10)
        with pytest.raises(GroupFailed, match="rank 1"):
            group.ask("add", to=0)


def test_a_rank_that_hangs_is_named_and_killed() -> None:
    with Conductor() as conductor:
        group = conductor.start("slow", 2, ranks())
        numbers = group.ask("pid")
        with pytest.raises(GroupFailed, match="rank 0 did not finish 'hang'"):
            group.ask("hang", limit_s=0.2)
        group.close(limit_s=0.0)
    assert not any(is_running(number) for number in numbers)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_no_rank_outlives_the_conductor(signum: int, tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    environment = {**plain_environment(), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", INTERRUPTED, str(program)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as conductor:
        assert conductor.stdout is not None
        numbers = [int(number) for number in conductor.stdout.readline().split()]
        assert len(numbers) == 2 and all(is_running(number) for number in numbers)
        started = time.monotonic()
        os.kill(conductor.pid, signum)
        assert conductor.wait(40) != 0
        assert within(10, lambda: not any(is_running(number) for number in numbers))
        assert time.monotonic() - started < 40
