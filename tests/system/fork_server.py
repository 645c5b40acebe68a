"""Ranks that are there at once: forked from a process that has loaded PyTorch, which takes seconds, and done nothing else.

They are processes like any other, with the environment that `unisono run` gives. What the launcher itself does with them (lines,
signals, ends) is tested where it is meant; here nobody ends a rank but itself, or the test that gives up waiting.

`python -m tests.system.fork_server FD MODULE...` is the process; for each group it forks a keeper, which forks the ranks and
buries them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any

from tests.system.processes import plain_environment
from unisono.cluster.machine import affinity
from unisono.cluster.rendezvous import derived_port
from unisono.launch.rank_env import Placement, rank_environment
from unisono.testing.ranks import GroupResult, run_ranks

ROOT = Path(__file__).resolve().parents[2]
MPI_RANK = Path(__file__).with_name("mpi_rank.py")
COMMUNICATION = ("unisono.comm.connect", "unisono.comm.engines.shm", "unisono.comm.engines.torch_dist", "unisono.testing.checks")
VERBS = ("unisono.run", "unisono.predict.apply_run", "unisono.predict.compare_runs")
AT_USE = ("torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg")
"""What PyTorch loads for its first optimiser, in two seconds, and we for the first picture."""
WITH_A_WHOLE_END = "unisono.testing.contract"
"""The contract of communicators: its ranks end as every interpreter does."""
START_LIMIT_S = 110.0
STOP_LIMIT_S = 10.0


class Group:
    """Ranks that are running. Methods are local."""

    def __init__(self, keeper: socket.socket, output: str) -> None:
        self._keeper = keeper
        self._output = output
        self._began = monotonic()
        self._heard = b""
        self.pids: tuple[int, ...] = tuple(json.loads(self._line(START_LIMIT_S)))
        """Of the ranks, in their order. One that has ended is buried at once."""

    def is_over(self) -> bool:
        """Cheap: whether all have ended."""
        return b"\n" in self._heard or bool(select.select([self._keeper], [], [], 0)[0])

    def wait(self, timeout_s: float) -> GroupResult:
        """Blocking: until all have ended; past `timeout_s` they are killed. The exit code is that of the first that failed."""
        timed_out = False
        try:
            code = self._line(timeout_s)
        except TimeoutError:
            timed_out = True
            self._keeper.shutdown(socket.SHUT_WR)  # that we wait no more is the word to kill them
            code = self._line(STOP_LIMIT_S)
        return GroupResult(int(code), Path(self._output).read_text(errors="replace"), monotonic() - self._began, timed_out)

    def _line(self, timeout_s: float) -> bytes:
        self._keeper.settimeout(timeout_s)
        while b"\n" not in self._heard:
            more = self._keeper.recv(1000)
            if not more:
                raise ConnectionError(f"the keeper of the ranks is gone; they printed: {Path(self._output).read_text()}")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line


class ForkServer:
    """The test's end of it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(self, program: Sequence[str], size: int, engine: str, timeout_s: float = 90.0) -> GroupResult:
        """Local, blocking: `program` (as `unisono run` takes it) on `size` ranks until all have ended; past `timeout_s` they are
        killed. The exit code is that of the first that failed. May be called from several threads at once."""
        with self.start(program, size, engine) as group:
            return group.wait(timeout_s)

    def run_mpi(self, program: Sequence[str], size: int, engine: str = "mpi", timeout_s: float = 90.0) -> GroupResult:
        """Local, blocking: the same under mpirun, which starts a small process in the place of each rank."""
        return run_ranks([str(MPI_RANK), self._address, *program], size, engine, timeout_s)

    def stand_in(self, program: Sequence[str]) -> list[str]:
        """Local: a command that any launcher may start; the rank is forked here and has the environment of the command."""
        return [sys.executable, "-S", str(MPI_RANK), self._address, *program]

    @contextmanager
    def start(
        self, program: Sequence[str], size: int, engine: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[Group]:
        """Local: the same ranks while they run, with some more variables. Those that run at the end are killed."""
        with socket.socket(socket.AF_UNIX) as keeper, tempfile.NamedTemporaryFile() as output:
            keeper.settimeout(START_LIMIT_S)
            keeper.connect(self._address)
            keeper.sendall(json.dumps(_request(program, size, engine, output.name, environment or {})).encode() + b"\n")
            yield Group(keeper, output.name)


@contextmanager
def fork_server(*modules: str, environment: Mapping[str, str] | None = None) -> Iterator[ForkServer]:
    """Local: loads these modules too, with these variables."""
    with tempfile.TemporaryDirectory(prefix="unisono-fork-server-") as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "door")
        listener.bind(address)
        listener.listen(16)
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.system.fork_server", str(listener.fileno()), *modules],
            cwd=ROOT,
            env={**plain_environment(), "OMP_NUM_THREADS": "1", **(environment or {})},
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
        )
        listener.close()  # so that nobody waits at the door of a dead one
        try:
            yield ForkServer(address)
        finally:
            process.kill()
            process.wait(STOP_LIMIT_S)


def _request(program: Sequence[str], size: int, engine: str, output: str, environment: Mapping[str, str]) -> dict[str, Any]:
    token = secrets.token_hex(16)
    place = Placement(
        num_local=size,
        num_nodes=1,
        node_rank=0,
        rendezvous=f"127.0.0.1:{derived_port(token)}",
        name=token,
        token=token,
        job=Path(program[-1]).name,
        restart=0,
        began_unix_s=time(),
        threads=affinity.threads_per_worker(size),
        threads_given=False,
        gpus=(),
        launch_options=(("UNISONO_ENGINE", engine),),
    )
    base = {**plain_environment(), **environment}
    return {
        "program": list(program),
        "environments": [rank_environment(base, place, rank) for rank in range(size)],
        "threads": place.threads,
        "output": output,
        "folder": str(Path.cwd()),
    }


# ---- the process ---------------------------------------------------------------------------------------------------------


def main() -> None:
    end = End()
    gc.disable()  # nothing of what is loaded now is garbage
    door, *more = sys.argv[1:]
    for module in (*COMMUNICATION, *VERBS, *AT_USE, *more):
        importlib.import_module(module)

    sys.modules["unisono.run"].draw_curves = _draw_nothing  # type: ignore[attr-defined]
    program = _serve(socket.socket(fileno=int(door)))
    # Only a rank comes here. What it raises goes up to the interpreter, as it does in any program.
    sys.argv = program[1:] if program[0] == "-m" else program
    with nullcontext() if any(one.startswith(WITH_A_WHOLE_END) for one in program[:2]) else end.of_program():
        if program[0] == "-m":
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program[0]).parent))
            runpy.run_path(program[0], run_name="__main__")


class End:
    """The end of a rank without the last thing an interpreter does: to clear all modules, which in a fork copies the memory of the
    server and takes longer than most programs of tests. Threads are waited for and `atexit` is called as ever."""

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._leave)  # before all others, so that it is called last

    @contextmanager
    def of_program(self) -> Iterator[None]:
        """Local: what leaves the block is the end of the program, and is told by the interpreter."""
        try:
            yield
            self._code = 0
        except SystemExit as error:
            self._code = _code_of(error)
            raise
        except Exception:
            self._code = 1
            sys.excepthook = partial(self._show, sys.excepthook)
            raise

    def _show(self, hook: Callable[..., object], *error: object) -> None:
        """As the interpreter does, which takes another code from a hook that exits."""
        try:
            hook(*error)
        except SystemExit as another:
            self._code = _code_of(another)
            raise

    def _leave(self) -> None:
        if self._code is None or "mpi4py.MPI" in sys.modules:  # MPI ends after `atexit`
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self._code)


def _code_of(error: SystemExit) -> int:
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)


def _draw_nothing(*arguments: Any, **_: Any) -> bool:
    """In the place of `draw_curves`, which would take longer than most trainings of tests."""
    arguments[1].touch()
    return True


def _serve(door: socket.socket) -> list[str]:
    """Blocking: never ends, but in each rank returns its program."""
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the keepers
    while True:
        client, _ = door.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            door.close()
            with client:
                return _keep(client)
        client.close()


def _keep(client: socket.socket) -> list[str]:
    """Fork the ranks and wait for all of them. Returns in the ranks, with the program."""
    with client.makefile("rb") as request:
        asked = json.loads(request.readline())
    pids: list[int] = []
    for rank, environment in enumerate(asked["environments"]):
        pid = os.fork()
        if pid == 0:
            _become_rank(rank, asked, environment)
            return list(asked["program"])
        pids.append(pid)
    with suppress(BrokenPipeError):  # who asked for them may be gone; they are buried all the same
        client.sendall(json.dumps(pids).encode() + b"\n")
    code = _bury(pids, client)
    with suppress(BrokenPipeError):
        client.sendall(f"{code}\n".encode())
    os._exit(0)


def _become_rank(rank: int, asked: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """What the launcher and a new interpreter would have done."""
    import torch

    os.setpgid(0, 0)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    cpus = affinity.cpu_share(rank, len(asked["environments"]))
    if cpus is not None and len(asked["environments"]) > 1:
        os.sched_setaffinity(0, cpus)
    torch.set_num_threads(asked["threads"])  # the variable for it was read long ago
    output = os.open(asked["output"], os.O_WRONLY | os.O_APPEND)
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True, write_through=False)  # a line and its end in one piece


def _bury(pids: Sequence[int], client: socket.socket) -> int:
    """Blocking: until all have ended; they are killed when the client leaves. The exit code of the first that failed."""
    code = 0
    living = {os.pidfd_open(pid): pid for pid in pids}
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        for fd in living:
            selector.register(fd, selectors.EVENT_READ)
        while living:
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                if key.fileobj is client:
                    for pid in living.values():
                        os.kill(pid, signal.SIGKILL)
                else:
                    ended = os.waitstatus_to_exitcode(os.waitpid(living.pop(key.fd), 0)[1])
                    os.close(key.fd)
                    code = code or (128 - ended if ended < 0 else ended)
    return code


if __name__ == "__main__":
    main()
