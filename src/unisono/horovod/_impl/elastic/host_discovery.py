"""The hosts of an elastic job: a fixed list, or what a script of the user prints each second."""

from __future__ import annotations

import errno
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from unisono.errors import UsageError
from unisono.horovod._impl.launching.host_slots import host_of
from unisono.launch.orphans import preexec_of_rank

LOOK_S = 1.0
SCRIPT_LIMIT_S = 60.0
"""A script that takes longer is ended; the hosts stay as they were."""

MOST_OUTPUT_BYTES = 1 << 20
"""A script that prints more is ended."""
SHELL = "/bin/sh"
"""Runs a script that does not name its interpreter."""

Hosts = Mapping[str, int]
"""Slots by host, in order."""


def hosts_in(text: str, slots_per_host: int | None) -> dict[str, int]:
    """Returns the hosts that a script has printed. Raises `UsageError` for a line that names no host. Pure."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        host = host_of(line)
        if host is None:
            raise UsageError(f"it printed {line!r}, but each line must be host or host:slots")
        name, slots = host
        found[name] = found.get(name, 0) + ((slots_per_host or 1) if slots is None else slots)
    return {host: slots for host, slots in found.items() if slots}


def difference(before: Hosts, after: Hosts) -> str:
    """Returns how the slots have changed, for messages; empty if they have not. Pure."""
    slots = [(host, before.get(host, 0), after.get(host, 0)) for host in dict.fromkeys((*before, *after))]
    return ", ".join(f"{host} {old} -> {new}" for host, old, new in slots if old != new)


def script_arguments(script: str, env: Mapping[str, str]) -> list[str]:
    """Returns the command line of a script. Raises `UsageError` if it cannot be started: the job would wait long for its hosts.
    Local."""
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise UsageError(f"--host-discovery-script {script!r} cannot be split into words: {error}; check its quotes") from error
    if not words:
        raise UsageError("--host-discovery-script is empty; give the path of a program that prints host:slots lines")
    if shutil.which(words[0], path=env.get("PATH")) is None:
        exists = Path(words[0]).exists()
        remedy = (
            f"chmod +x {shlex.quote(words[0])}" if exists else "check the path; a script in the current folder needs ./ in front"
        )
        raise UsageError(f"--host-discovery-script {words[0]} {'is not executable' if exists else 'was not found'}; {remedy}")
    return words


@dataclass(frozen=True)
class Change:
    """The last answer of the script, or its problem."""

    hosts: Hosts | None
    problem: str = ""
    """Why there is no answer; the hosts stay as they were."""


class Discovery:
    """A thread that asks the script, and calls `on_change` with each answer that differs from the previous one and with the first
    of failures in a row."""

    def __init__(
        self, script: str, slots_per_host: int | None, env: Mapping[str, str], on_change: Callable[[Change], None]
    ) -> None:
        self._arguments = shlex.split(script)
        self._slots_per_host = slots_per_host
        self._env = env
        self._on_change = on_change
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._ask_at_intervals, name="unisono-discovery", daemon=True)

    def start(self) -> None:
        """Starts the thread. Local."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and a running script with all that it has started. Local."""
        self._over.set()
        if self._process is not None:
            _kill(self._process)
        self._thread.join()

    def _ask_at_intervals(self) -> None:
        """The thread: asks the script at intervals and passes on the answers that are news."""
        last: Change | None = None
        while not self._over.is_set():
            change = self.ask_script()
            fails_again = last is not None and change.hosts is None and last.hosts is None  # perhaps in other words: a time
            if change != last and not fails_again and not self._over.is_set():
                self._on_change(change)
                last = change
            self._over.wait(LOOK_S)

    def ask_script(self) -> Change:
        """Asks the script once and returns its answer. Local, blocking."""
        try:
            with subprocess.Popen(
                self._arguments,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=preexec_of_rank(
                    signal.pthread_sigmask(signal.SIG_BLOCK, ())
                ),  # its end is that of this thread at the latest
            ) as process:
                self._process = process
                if self._over.is_set():
                    _kill(process)
                try:
                    out, err = _output_of(process, monotonic() + SCRIPT_LIMIT_S)
                except BaseException:
                    _kill(process)  # or we would wait for its end
                    raise
            if process.returncode:
                words = err.decode(errors="replace").strip().splitlines()
                return Change(None, f"it exited with code {process.returncode}{': ' + words[-1] if words else ''}")
            return Change(hosts_in(out.decode(errors="replace"), self._slots_per_host))
        except (OSError, UsageError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOEXEC and self._arguments[0] != SHELL:
                self._arguments = [SHELL, shutil.which(self._arguments[0]) or self._arguments[0], *self._arguments[1:]]
                return self.ask_script()
            return Change(None, str(error))


def _output_of(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """The two outputs of a script, once it has ended. Raises `UsageError` for a script that does not end. Local, blocking."""
    assert process.stdout is not None and process.stderr is not None
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - monotonic()))
            if not ready or monotonic() > deadline:
                raise UsageError(f"it took longer than {SCRIPT_LIMIT_S:g} s")
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                texts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if len(texts[key.fd]) > MOST_OUTPUT_BYTES:
                    raise UsageError(f"it printed more than {MOST_OUTPUT_BYTES >> 20} MiB")
    try:
        process.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        raise UsageError(f"it took longer than {SCRIPT_LIMIT_S:g} s") from None
    out, err = texts.values()
    return bytes(out), bytes(err)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a script and its children: a child that holds its output would be waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
