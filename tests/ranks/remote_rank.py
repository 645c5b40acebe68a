"""A rank in a process of its own that does what a test tells it, one command at a time. Imports no torch, so it starts quickly."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from unisono.comm.control_plane.control import Report
from unisono.comm.control_plane.tcp_control import TcpControl
from unisono.errors import CommError

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0


@dataclass(frozen=True)
class Raised:
    """An exception of the other process."""

    kind: str
    text: str
    ranks: tuple[int, ...]


class RemoteRank:
    """The test's end. Use in a `with` statement: the process is killed at the end, whatever it does."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._pipe, theirs = Pipe()
        self._stacks = os.memfd_create("stacks")
        fcntl.fcntl(self._stacks, fcntl.F_SETFL, os.O_APPEND)
        with theirs:
            files = [theirs.fileno(), self._stacks]
            command = [*prefix, sys.executable, "-m", "tests.ranks.remote_rank", *map(str, files)]
            self._process = subprocess.Popen(command, pass_fds=files, cwd=ROOT)
        self.pid = self._process.pid

    def start(self, command: str, *args: Any, **named: Any) -> None:
        """Not blocking: tell the rank to begin."""
        self._pipe.send((command, args, named))

    def result(self, limit_s: float = LIMIT_S) -> Any:
        """Blocking: what the command gave, or `Raised`."""
        if not self._pipe.poll(limit_s):
            raise TimeoutError(f"process {self.pid} gave no result within {limit_s:g} s")
        return self._pipe.recv()

    def call(self, command: str, *args: Any, **named: Any) -> Any:
        self.start(command, *args, **named)
        return self.result()

    def is_ready(self) -> bool:
        """Whether it takes commands, and the signal that asks for its stacks."""
        return bool(os.pread(self._stacks, 1, 0))

    def is_in(self, function: str) -> bool:
        """Whether that function stands in the stack of one of the threads, now or when it was last asked."""
        seen = os.pread(self._stacks, 1 << 24, 0)
        if self.is_ready():
            self._process.send_signal(signal.SIGUSR1)
        return f" in {function}\n".encode() in seen

    def send_signal(self, number: signal.Signals) -> None:
        """Blocking with SIGSTOP: until no thread runs any more, as the signal reaches some of them later than it is sent."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            until(lambda: all(one.read_text().rpartition(")")[2].split()[0] == "T" for one in self._threads()))

    def _threads(self) -> list[Path]:
        return list(Path(f"/proc/{self._process.pid}/task").glob("*/stat"))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)

    def exit_code(self) -> int:
        """Blocking: let the process end by itself."""
        self._pipe.close()
        return self._process.wait(LIMIT_S)

    def __enter__(self) -> RemoteRank:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._pipe.close()
        os.close(self._stacks)


class Commands:
    """What a test can ask of a rank; runs in the rank's process."""

    control: TcpControl

    def set_constants(self, module: str, **values: float) -> None:
        """Other waiting times than the real ones, so that the test need not wait for those."""
        for name, value in values.items():
            assert hasattr(sys.modules[module], name)
            setattr(sys.modules[module], name, value)

    def connect(self, **named: Any) -> dict[str, Any]:
        self.control = TcpControl.connect(**named)
        return {"address": self.control.local_address, "infos": self.control.peers_info}

    def exchange(self, *args: Any) -> list[Any]:
        return self.control.exchange(*args)

    def exchange_many(self, keys: Sequence[str], members: Sequence[int], timeout_s: float) -> int:
        """From as many threads as there are keys; how many gave what they should."""
        expected = {key: [(key, member) for member in members] for key in keys}
        found: dict[str, list[Any]] = {}

        def one(key: str) -> None:
            found[key] = self.control.exchange(key, members, (key, self.control.rank), timeout_s)

        threads = [threading.Thread(target=one, args=(key,)) for key in random.sample(keys, len(keys))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(found.get(key) == expected[key] for key in keys)

    def exchange_and_close(self, key: str, members: Sequence[int], num_bytes: int, timeout_s: float) -> list[int]:
        found = self.control.exchange(key, members, bytes(num_bytes), timeout_s)
        self.control.close()
        return [len(one) for one in found]

    def lost(self) -> dict[int, tuple[str, tuple[int, ...]]]:
        return {rank: (loss.reason, loss.causes) for rank, loss in self.control.lost.items()}

    def reports(self, members: Sequence[int], timeout_s: float) -> dict[int, Report]:
        return self.control.reports(members, timeout_s)

    def give_up(self, reason: str, causes: Sequence[int]) -> None:
        self.control.give_up(reason, causes)

    def give_up_and_die(self, reason: str, causes: Sequence[int]) -> None:
        self.control.give_up(reason, causes)
        os._exit(1)

    def close(self) -> None:
        self.control.close()

    def wait_somewhere(self, group: str) -> None:
        """Blocked outside Python, with the interpreter's lock released."""
        self.control.current_calls[group] = (7, "allreduce(float32[3], sum)")
        os.read(os.pipe()[0], 1)

    def fork_sleeper(self) -> int:
        """A child made by fork alone, as data loaders make them. It lives until it is killed."""
        child = os.fork()
        if child == 0:
            signal.pause()
        return child

    def fork_and_misbehave(self) -> int:
        """A forked child that uses the parent's connection and leaves as programs leave; its exit code."""
        child = os.fork()
        if child == 0:
            code = 3
            try:
                self.control.give_up("a child spoke in its parent's name", [])
                self.control.exchange("of a child", range(self.control.size), None, 5)
            except CommError as error:
                code = 0 if "forked" in str(error) else 4
            self.control.close()
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def modules(self) -> list[str]:
        return list(sys.modules)

    def sockets_of_child(self) -> tuple[int, int]:
        """How many sockets this process has, and how many a program that it starts inherits."""
        own, inherited = (
            subprocess.run(
                ["ls", "-l", f"/proc/{process}/fd"],
                close_fds=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
            )
            for process in (os.getpid(), "self")
        )
        return own.stdout.count("socket:"), inherited.stdout.count("socket:")

    def threads(self) -> list[tuple[str, bool]]:
        return [(thread.name, thread.daemon) for thread in threading.enumerate()]


def until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Blocking: the first true value of the condition; fails after the limit."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {condition}"
        time.sleep(0.01)
    return value


def _write_stacks(file: int) -> None:
    for frame in sys._current_frames().values():
        names = [f" in {one.f_code.co_name}\n" for one, _ in traceback.walk_stack(frame)]
        os.write(file, "".join(names).encode())


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    stacks = int(sys.argv[2])
    for file in (pipe.fileno(), stacks):
        os.set_inheritable(file, False)
    # Not faulthandler: it reads the stacks of running threads without the interpreter's lock, and crashes now and then.
    signal.signal(signal.SIGUSR1, lambda *_: _write_stacks(stacks))
    os.write(stacks, b"ready\n")
    commands = Commands()
    while True:
        try:
            name, args, named = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(commands, name)(*args, **named)
        except Exception as error:  # noqa: BLE001 -- carried over to the test
            answer = Raised(type(error).__name__, str(error), getattr(error, "ranks", ()))
        pipe.send(answer)


if __name__ == "__main__":
    # Pickle must find these classes under one name in both processes.
    from tests.ranks import remote_rank

    remote_rank.main()
