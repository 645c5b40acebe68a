"""The leak police: a test that leaves something behind fails, and what it left is removed for the sake of the next one."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.system.fork_server import ForkServer

GRACE_S = 5.0
"""What is on its way out when the test returns may take this long; a leak stays."""

MARK = f"PYTEST_LEAK_POLICE_{os.getpid()}"
"""Every descendant inherits this variable, so an orphan that init has adopted is still known as ours."""

SHARED_MEMORY = Path("/dev/shm")

ONE_THREAD = "OMP_NUM_THREADS"
"""Set to 1: threads that wait for each other at every small product cost more than they give, and on a busy machine they take a
hundred times as long."""

ASK_SOON_AGAIN = "timeout:1 attempts:5"
"""For the resolver: PyTorch asks for the name of every peer, and a name server that drops a question costs 5 s each time."""


COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""For JAX, which compiles longer than it computes in tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    soak = parser.getgroup("soak", "of `make soak`")
    soak.addoption("--soak-minutes", type=float, default=4.0, metavar="M", help="how long each soak test goes on (default: 4)")
    soak.addoption(
        "--soak-seed", type=int, metavar="S", help="the first seed of each, to repeat a failure (default: another each time)"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = "1"
    os.environ.setdefault("RES_OPTIONS", ASK_SOON_AGAIN)
    os.environ.setdefault(ONE_THREAD, "1")
    os.environ.setdefault("XLA_FLAGS", COMPILE_FAST)
    faulthandler.enable()
    for signum in (signal.SIGINT, signal.SIGHUP):
        # Background jobs and nohup ignore them, and so would every program of a test. A handler stays with us.
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda *_: None)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.environ.pop(MARK, None)


@dataclass(frozen=True)
class Leak:
    """Something that was not there before the test."""

    what: str
    remove: Callable[[], object]


@pytest.fixture(autouse=True)
def leak_police() -> Iterator[None]:
    """Fails a test that leaks a process, a thread, a listening port, an environment variable or a shared-memory file."""
    before = Snapshot()
    yield
    before.expect_nothing_more()


@pytest.fixture
def nothing_left() -> Callable[[], None]:
    """For tests that do many things: fails at once if one of them has left something behind since the test began."""
    return Snapshot().expect_nothing_more


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts ranks without the seconds that loading PyTorch takes."""
    from tests.system import fork_server  # here, as the test of this file has a copy of it elsewhere

    with fork_server.fork_server() as running:
        yield running


@pytest.fixture(scope="session")
def keras_server() -> Iterator[ForkServer]:
    """The same with Keras, on torch."""
    from tests.system import fork_server

    with fork_server.fork_server("keras", "unisono.keras", environment={"KERAS_BACKEND": "torch"}) as running:
        yield running


@pytest.fixture(scope="session")
def tensorflow_server() -> Iterator[ForkServer]:
    """The same with TensorFlow, and Keras on it."""
    from tests.system import fork_server

    environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with fork_server.fork_server("tensorflow", "keras", "unisono.keras", environment=environment) as running:
        yield running


class Snapshot:
    """What exists now; `leaks` says what has been added since."""

    def __init__(self) -> None:
        self._newest = _newest_process()
        self._processes = set(_descendants())
        self._threads = set(threading.enumerate())
        self._ports = _listening_ports()
        self._environment = _environment()
        self._shared_memory = set(_shared_memory_files())

    def expect_nothing_more(self) -> None:
        """Blocking while something is on its way out."""
        deadline = monotonic() + GRACE_S
        while (leaks := self.leaks()) and monotonic() < deadline:
            sleep(0.02)
        if leaks:
            for leak in leaks:
                leak.remove()
            pytest.fail("the test left behind:\n" + "\n".join(f"  {leak.what}" for leak in leaks), pytrace=False)

    def leaks(self) -> list[Leak]:
        return [
            *(
                Leak(f"process {_describe(process)}", partial(_end, process))
                for process in self._descendants_now()
                if process not in self._processes
            ),
            *(
                Leak(f"thread {thread.name}{' (daemon)' if thread.daemon else ''}", lambda: None)
                for thread in threading.enumerate()
                if thread not in self._threads and (not thread.daemon or thread.name.startswith("unisono-"))
            ),
            *(Leak(f"listening port {port}", lambda: None) for port in sorted(_listening_ports() - self._ports)),
            *self._changed_variables(),
            *(
                Leak(f"shared-memory file {file}", partial(file.unlink, missing_ok=True))
                for file in _shared_memory_files()
                if file not in self._shared_memory and _is_ours(file)
            ),
        ]

    def _descendants_now(self) -> list[psutil.Process]:
        """Looking through all processes takes its time; where none was born since, none of ours was."""
        return [] if _newest_process() == self._newest else _descendants()

    def _changed_variables(self) -> Iterator[Leak]:
        now = _environment()
        for name in sorted(self._environment.keys() | now.keys()):
            old = self._environment.get(name)
            if old != now.get(name):
                yield Leak(
                    f"environment variable {name}: was {old!r}, is {now.get(name)!r}",
                    partial(_restore_variable, name, old),
                )


def _newest_process() -> str:
    """The number that the system gave last to a process or thread, of whomever."""
    return Path("/proc/loadavg").read_text().split()[-1]


OF_KERNEL = (0, 2)
"""Parents of threads of the kernel, which have no variables."""
STARTS_WITHIN_S = 1.0
"""Another process without variables is looked at again for so long."""

_seen: dict[int, bool] = {}
"""Process number -> whether it descends from this session. Each process is asked once: asking all at every test costs minutes."""


def _descendants() -> list[psutil.Process]:
    """Children of any depth, zombies included, and orphans that carry our mark."""
    now = set(psutil.pids())
    for pid in _seen.keys() - now:
        del _seen[pid]
    for pid in sorted(now - _seen.keys()):  # a parent before its children, but where the numbers began again
        deadline = monotonic() + STARTS_WITHIN_S
        while (is_ours := _descends(pid)) is None and monotonic() < deadline:
            sleep(0.01)
        _seen[pid] = bool(is_ours)
    found = []
    for pid in (pid for pid, is_ours in _seen.items() if is_ours):
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    # The tracker that the standard library starts once serves the whole session.
    return [process for process in found if "multiprocessing.resource_tracker" not in _describe(process)]


def _descends(pid: int) -> bool | None:
    """Whether it is a descendant of this process; None where that cannot be known yet: an orphan that is just starting its program
    has no variables for a moment."""
    try:
        process = psutil.Process(pid)
        parent = process.ppid()
        if parent == os.getpid() or _seen.get(parent, False):
            return True
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        if not variables:
            return False if parent in OF_KERNEL or process.status() == psutil.STATUS_ZOMBIE else None
    except (OSError, psutil.NoSuchProcess):  # it ended while we looked, or belongs to somebody else
        return False
    return f"{MARK}=1".encode() in variables.split(b"\0") and pid != os.getpid()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline()) or process.name()}"
    except psutil.ZombieProcess:
        return f"{process.pid} (zombie: nobody waited for it)"
    except psutil.NoSuchProcess:
        return f"{process.pid} (ended just now)"


def _end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):  # an orphan's zombie is init's to bury
        process.kill()
        process.wait(GRACE_S)


def _listening_ports() -> set[int]:
    connections = psutil.Process().net_connections(kind="inet")
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


NOT_OURS = frozenset({"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK"})
"""Set by pytest, by torch when a process makes its first optimiser, and by scikit-learn when it is loaded."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_OURS}


def _restore_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _shared_memory_files() -> list[Path]:
    return sorted(SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else []


def _is_ours(file: Path) -> bool:
    """Not another user's, and not in use by a program that this session did not start."""
    try:
        if file.stat().st_uid != os.getuid():
            return False
    except FileNotFoundError:
        return False
    ours = {os.getpid(), *(process.pid for process in _descendants())}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in ours:
            with suppress(OSError):
                opened = (str(link.readlink()) for link in (entry / "fd").iterdir())
                if str(file) in opened or str(file) in (entry / "maps").read_text():
                    return False
    return True
