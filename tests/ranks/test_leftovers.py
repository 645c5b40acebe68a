"""Nothing is left behind by `unisono run`, however it ends and wherever its ranks' children went; with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tests.ranks.launching import LIMIT_S, SHORT_S, Launcher, Script
from tests.system.ports import free_port
from tests.system.processes import is_running, plain_environment, within

pytestmark = pytest.mark.timeout(60)

LEAVE = """
import shutil
def leave(*steps, env=os.environ, ignored=()):
    reader, writer = os.pipe()
    if os.fork() == 0:
        for step in steps:
            if step == "setsid":
                os.setsid()
            elif step == "setpgid":
                os.setpgid(0, 0)
            elif os.fork():  # "fork": whoever started it goes away
                os._exit(0)
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        os.execve(shutil.which("sleep"), ["sleep", "100"], env)
    print("child", os.read(reader, 20).decode(), flush=True)
"""
"""A process that leaves its rank in several steps, and says its number when it has."""

WAYS = {
    "child": "leave()",
    "group": "leave('setpgid')",
    "session": "leave('setsid')",
    "daemon": "leave('fork', 'setsid', 'fork')",
    "whole family": "leave('setsid'); leave('fork', 'setsid', 'fork'); leave(); leave('setsid', 'fork', 'setpgid')",
}
BARE = "leave('fork', 'setsid', 'fork', env={})"


def family(launcher: Launcher, num_ranks: int) -> list[int]:
    """Blocking: the numbers of the ranks and of what they started."""
    pids = launcher.reading().pids(num_ranks)
    return pids + [int(line.split()[-1]) for line in launcher.printed("out") if "] child " in line]


def all_end(pids: Sequence[int], limit_s: float = LIMIT_S) -> bool:
    """Whether they do by themselves; none of them is left for the next test in any case."""
    ended = within(limit_s, lambda: not any(map(is_running, pids)))
    for pid in pids if not ended else ():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return ended


@pytest.mark.parametrize("way", [*WAYS.values(), BARE], ids=[*WAYS, "bare"])
def test_at_the_end_of_the_ranks(script: Script, way: str) -> None:
    with Launcher("-n", "2", script(LEAVE + way + "; pid()"), grace_s=1000) as launcher:
        pids = family(launcher, 2)
        assert len(pids) == 2 + 2 * way.count("leave")
        assert launcher.finish() == 0, "the end of what was left must wake the launcher, however patient it is"
        assert all_end(pids, 0)
        assert launcher.printed("err") == []


@pytest.mark.parametrize("way", [*WAYS.values(), BARE], ids=[*WAYS, "bare"])
def test_at_an_interrupt(script: Script, way: str) -> None:
    body = f"{LEAVE}\n{way}\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(0)); pid(); wait_for_ever()"
    with Launcher("-n", "2", script(body)) as launcher:
        pids = family(launcher, 2)
        os.kill(launcher.process.pid, signal.SIGINT)
        assert launcher.finish() == 0
        assert all_end(pids, 0)


def test_a_second_interrupt_does_not_wait_for_what_ignores_the_first(script: Script) -> None:
    body = LEAVE + "signal.signal(signal.SIGINT, signal.SIG_IGN); leave('setsid', ignored=(2, 15)); pid(); wait_for_ever()"
    with Launcher("-n", "1", script(body), grace_s=1000) as launcher:
        pids = family(launcher, 1)
        os.kill(launcher.process.pid, signal.SIGINT)
        launcher.wait_for("Ctrl-C again")
        os.kill(launcher.process.pid, signal.SIGINT)
        assert launcher.finish() == 130
        assert all_end(pids, 0)


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_what_ignores_sigterm_is_killed(script: Script, way: str) -> None:
    body = LEAVE + way.replace(")", ", ignored=(15,))").replace("(,", "(") + "; pid(); sys.exit(6)"
    with Launcher("-n", "1", script(body), grace_s=SHORT_S) as launcher:
        pids = family(launcher, 1)
        assert launcher.finish() == 6
        assert all_end(pids, 0)


def test_what_one_rank_left_serves_the_others_to_the_end(script: Script) -> None:
    body = """
    if rank == 1:
        leave("fork", "setsid", "fork")
        pid()
        sys.exit(0)
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    pid()
    wait_for_ever()
    """
    with Launcher("-n", "2", script(LEAVE + dedent(body)), grace_s=SHORT_S) as launcher:
        rank_0, rank_1, daemon = family(launcher, 2)
        assert within(LIMIT_S, lambda: not is_running(rank_1))
        assert is_running(daemon)
        os.kill(rank_0, signal.SIGUSR1)
        assert launcher.finish() == 0
        assert all_end([daemon], 0)


def test_each_attempt_ends_with_the_processes_it_left(script: Script) -> None:
    body = LEAVE + "leave('fork', 'setsid', 'fork'); pid(); sys.exit(3)"
    with Launcher("-n", "1", "--on-failure", "restart", "--restarts", "1", script(body), grace_s=SHORT_S) as launcher:
        assert launcher.reading().finish() == 3
        left = [int(line.split()[-1]) for line in launcher.printed("out") if "] child " in line]
        assert len(left) == 2 and all_end(left, 0)


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_when_the_launcher_is_killed(script: Script, way: str) -> None:
    with Launcher("-n", "2", script(f"{LEAVE}\n{way}\npid(); wait_for_ever()")) as launcher:
        pids = family(launcher, 2)
        assert all(map(is_running, pids))
        launcher.process.kill()
        assert all_end(pids)


def test_when_the_launcher_is_killed_what_ignores_sigterm_goes_too(script: Script) -> None:
    with Launcher("-n", "1", script(LEAVE + "leave('setsid', ignored=(15,)); pid(); wait_for_ever()")) as launcher:
        pids = family(launcher, 1)
        launcher.process.kill()
        assert all_end(pids)


def test_when_the_launcher_of_another_node_is_killed_ours_stay(script: Script) -> None:
    """Two nodes that are one machine: what tells their processes apart is the number of the node."""
    program = script(LEAVE + "leave('fork', 'setsid', 'fork'); pid(); wait_for_ever()")
    nodes = ("-n", "1", "--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--node-rank")
    with Launcher(*nodes, "0", program) as launcher, Launcher(*nodes, "1", program) as other:
        ours = family(launcher, 1)
        other.reading().wait_for("[1] pid")
        theirs = [int(line.split()[-1]) for line in other.printed("out")]
        assert len(theirs) == 2
        other.process.kill()
        assert all_end(theirs)
        assert all(map(is_running, ours))
        launcher.process.kill()
        assert all_end(ours)


def test_when_the_launcher_is_killed_so_is_one_that_its_rank_started(script: Script, tmp_path: Path) -> None:
    inner = Script(tmp_path / "inner.py")(LEAVE + "leave('fork', 'setsid', 'fork', ignored=(15,)); pid(); wait_for_ever()")
    outer = f"os.execv(sys.executable, [sys.executable, '-m', 'unisono', 'run', '-n', '1', {inner!r}])"
    with Launcher("-n", "1", script(outer)) as launcher:
        launcher.reading().wait_for("[0] [0] pid")
        pids = [int(line.split()[-1]) for line in launcher.printed("out")]
        assert len(pids) == 2
        launcher.process.kill()
        assert all_end(pids)


def test_ranks_die_with_the_launcher_even_without_the_watchdog(script: Script) -> None:
    with Launcher("-n", "2", script("pid(); wait_for_ever()")) as launcher:
        pids = launcher.reading().pids(2)
        children = psutil.Process(launcher.process.pid).children()
        guards = [child for child in children if "unisono.launch.watchdog" in " ".join(child.cmdline())]
        assert len(guards) == 1
        guards[0].kill()
        launcher.process.kill()
        assert all_end(pids)


def test_the_watchdog_outlasts_the_signals_that_end_others(script: Script) -> None:
    with Launcher("-n", "1", script(LEAVE + "leave('setsid'); pid(); wait_for_ever()")) as launcher:
        pids = family(launcher, 1)
        children = psutil.Process(launcher.process.pid).children()
        (guard,) = [one for one in children if "unisono.launch.watchdog" in " ".join(one.cmdline())]
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            guard.send_signal(signum)
        launcher.process.kill()
        assert all_end(pids)


IN_A_PROGRAM = """
import subprocess, sys
from unisono.launch.launch import LaunchConfig, launch
before = subprocess.Popen(["sleep", "100"], start_new_session=True)
beside = subprocess.Popen(["sleep", "100"])
code = launch(LaunchConfig(program=tuple(sys.argv[1:]), num_local=1))
print("still there:", before.poll() is None, beside.poll() is None)
for process in (before, beside):
    process.kill()
    process.wait()
sys.exit(code)
"""


def test_children_of_the_program_that_launches_are_left_alone(script: Script) -> None:
    command = [sys.executable, "-c", IN_A_PROGRAM, script(LEAVE + "leave('setsid'); pid()")]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "still there: True True" in done.stdout
    assert all_end([int(line.split()[-1]) for line in done.stdout.splitlines() if "] child " in line], 0)
