"""Signals that ask for a stop: the first is only noted, the second ends the process whatever it is doing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import IO

import pytest

from unisono.stopping.stop_request import HANDLED_SIGNALS, StopRequest

pytestmark = pytest.mark.timeout(60)

LIMIT_S = 30.0
AT_ONCE = ("SIGINT", "SIGTERM")

HEAD = """
import ctypes, os, signal, socket, sys, threading
from unisono.stopping import second_signal
from unisono.stopping.stop_request import StopRequest

second_signal.SAME_SIGNAL_S = dict.fromkeys(second_signal.SAME_SIGNAL_S, {same_s})
heard, feed = socket.socketpair()
feed.setblocking(False)
signal.set_wakeup_fd(feed.fileno())
counted = threading.Event()

def say(*words):
    print(*words, flush=True)

def listen():
    "Each signal once it was counted, and whether a handler has run."
    while got := heard.recv(1):
        say(signal.Signals(got[0]).name, "noted" if stop.requested() else "not noted")
        counted.set()

def hang_in_c():
    "A mutex that its owner locks again: the call never returns, and signals do not interrupt it."
    mutex = ctypes.create_string_buffer(128)  # zeros are one that is free
    lock, lock_as_python = ctypes.CDLL(None).pthread_mutex_lock, ctypes.PyDLL(None).pthread_mutex_lock
    gate = threading.Lock()
    gate.acquire()
    threading.Thread(target=lambda: gate.acquire() and say("in C"), daemon=True).start()
    # From here nobody else runs Python before the last call gives up the interpreter's lock.
    sys.setswitchinterval(1e6)
    lock_as_python(mutex)
    gate.release()
    lock(mutex)

stop = StopRequest()
threading.Thread(target=listen, daemon=True).start()
with stop:
"""


class Running:
    """A program inside a StopRequest."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self._output: IO[str] = process.stdout

    def expect(self, *lines: str) -> None:
        for line in lines:
            assert self._output.readline() == f"{line}\n"

    def send(self, name: str) -> None:
        self._process.send_signal(signal.Signals[name])

    def send_into_c(self, name: str) -> None:
        """Blocking: until it was counted. The handler has not run then, as it would have in Python code."""
        self.send(name)
        self.expect(f"{name} not noted")

    def code(self) -> int:
        return self._process.wait(LIMIT_S)


def text_of(body: str, same_s: float) -> str:
    return HEAD.format(same_s=same_s) + indent(dedent(body), "    ")


@contextmanager
def in_c(same_s: float = 0.0, before: str = "") -> Iterator[Running]:
    """A program whose main thread is in C and stays there."""
    with running("hang_in_c()", same_s, before) as program:
        program.expect("in C")
        yield program


@contextmanager
def running(body: str, same_s: float = 0.0, before: str = "") -> Iterator[Running]:
    """`before` is done by the shell that becomes the program."""
    command = ["sh", "-c", f'{before}\nexec "$@"', "sh", sys.executable, "-c", text_of(body, same_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


# ---- the first ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signum", "why"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")])
def test_one_signal_is_noted(signum: signal.Signals, why: str) -> None:
    with StopRequest() as stop:
        assert not stop.requested() and stop.reason() is None
        signal.raise_signal(signum)
        assert stop.requested() and stop.reason() == why


def test_the_first_reason_is_kept() -> None:
    with StopRequest() as stop:
        stop.request("time limit")
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested() and stop.reason() == "time limit"


@pytest.mark.parametrize("name", [signum.name for signum in HANDLED_SIGNALS])
def test_the_program_ends_by_itself_after_one(name: str) -> None:
    with running("say('ready')\nwhile not stop.requested(): signal.sigtimedwait([], 0.01)\nos._exit(75)") as program:
        program.expect("ready")
        program.send(name)
        assert program.code() == 75


def test_an_ignored_ctrl_c_stays_ignored_and_the_scheduler_is_heard() -> None:
    with in_c(before="trap '' INT TERM USR1") as program:
        program.send("SIGINT")
        program.send_into_c("SIGUSR1")
        program.send_into_c("SIGTERM")


# ---- the second -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_second_ends_it_while_the_main_thread_is_in_c(name: str) -> None:
    with in_c() as program:
        program.send_into_c(name)
        program.send(name)
        assert program.code() == -signal.Signals[name]


def test_any_number_of_sigusr1_ends_nothing_at_once() -> None:
    with in_c() as program:
        for _ in range(3):
            program.send_into_c("SIGUSR1")
        program.send_into_c("SIGTERM")
        program.send("SIGTERM")
        assert program.code() == -signal.SIGTERM


def test_two_requests_of_different_kinds_are_no_second_signal() -> None:
    with in_c() as program:
        for name in AT_ONCE:
            program.send_into_c(name)


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_request_that_comes_twice_at_the_same_time_is_one(name: str) -> None:
    with in_c(same_s=1000.0) as program:
        for _ in range(2):
            program.send_into_c(name)


def test_the_first_process_of_a_container_ends_too() -> None:
    """The kernel does not end it by a signal that it has no handler for."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, timeout=LIMIT_S).returncode:
        pytest.skip("a process name space cannot be made here; run as root, with util-linux")
    body = """
    assert os.getpid() == 1
    os.kill(1, signal.SIGTERM)
    counted.wait()
    os.kill(1, signal.SIGTERM)
    hang_in_c()
    """
    ended = subprocess.run([*unshare, sys.executable, "-c", text_of(body, 0.0)], capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 128 + signal.SIGTERM, ended


# ---- others ---------------------------------------------------------------------------------------------------------------


def test_a_forked_child_has_its_own_signals() -> None:
    """Each lives through Ctrl-C and ends by one SIGTERM, and nothing of that reaches the parent, which two would end."""
    body = """
    for _ in range(2):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            assert signal.set_wakeup_fd(-1) == -1
            signal.raise_signal(signal.SIGINT)
            os.write(writer, b"alive")
            while True:
                signal.pause()
        os.read(reader, 5)
        os.kill(child, signal.SIGTERM)
        say(os.waitpid(child, 0)[1])
    hang_in_c()
    """
    with running(body) as program:
        program.expect(f"{signal.SIGTERM:d}", f"{signal.SIGTERM:d}", "in C")
        program.send_into_c("SIGTERM")


def test_a_forked_child_may_leave_too() -> None:
    body = """
    child = os.fork()
    if child:
        say(os.waitpid(child, 0)[1])
    """
    with running(body) as program:
        program.expect("0")
        assert program.code() == 0


def test_all_is_given_back() -> None:
    descriptors, threads = len(list(Path("/proc/self/fd").iterdir())), threading.enumerate()
    handlers = [signal.getsignal(signum) for signum in HANDLED_SIGNALS]
    for _ in range(2):
        with StopRequest() as stop:
            assert [thread.name for thread in threading.enumerate() if thread not in threads] == ["unisono-signals"]
            assert all(signal.getsignal(signum) == stop._on_signal for signum in HANDLED_SIGNALS)
    assert [signal.getsignal(signum) for signum in HANDLED_SIGNALS] == handlers
    assert threading.enumerate() == threads and len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert signal.set_wakeup_fd(-1) == -1


def test_the_earlier_owner_of_the_descriptor_is_called_and_has_it_back() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        reader.settimeout(LIMIT_S)
        signal.set_wakeup_fd(writer.fileno())
        try:
            with StopRequest():
                signal.raise_signal(signal.SIGTERM)
                assert reader.recv(9) == bytes([signal.SIGTERM])
        finally:
            assert signal.set_wakeup_fd(-1) == writer.fileno()


def test_a_later_owner_of_the_descriptor_keeps_it() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        with StopRequest():
            signal.set_wakeup_fd(writer.fileno())
        assert signal.set_wakeup_fd(-1) == writer.fileno()


def test_a_descriptor_that_was_closed_meanwhile_is_not_given_back() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    with StopRequest() as stop:
        os.close(reader)
        os.close(writer)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested()
    assert signal.set_wakeup_fd(-1) == -1


def test_outside_the_main_thread_only_ask_counts() -> None:
    handlers = [signal.getsignal(signum) for signum in HANDLED_SIGNALS]
    seen: list[object] = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append([signal.getsignal(signum) for signum in HANDLED_SIGNALS] == handlers)
            stop.request("time limit")
            seen.extend((stop.requested(), stop.reason()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LIMIT_S)
    assert seen == [True, True, "time limit"]
