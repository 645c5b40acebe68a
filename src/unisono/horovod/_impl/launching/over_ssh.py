"""The command lines that start the ranks of several hosts, through ssh where a host is not this machine. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unisono.horovod._impl.launching.host_slots import Hosts, is_here
from unisono.horovod._impl.launching.ssh_words import is_forwarded, ssh_words
from unisono.launch.ssh.hosts_run import HostCommand


@dataclass(frozen=True)
class OverSsh:
    """The options that all hosts share."""

    hosts: Hosts
    rendezvous: str
    job: str
    """A readable name. Everybody on these hosts sees it, as it stands on command lines."""
    secret: str
    """What keeps others out of the job."""
    program: tuple[str, ...]
    options: tuple[str, ...]
    """Further options of `unisono run`."""
    env: Mapping[str, str]
    """Of this process, with what was asked for."""
    folder: Path
    """Where the program runs, on every host."""
    port: int | None = None
    key: str | None = None

    def commands(self) -> list[HostCommand]:
        """Returns the command that starts the ranks of each host, in the order of hosts. Local."""
        return [self._command_for_host(index, name, slots) for index, (name, slots) in enumerate(self.hosts)]

    def _command_for_host(self, index: int, name: str, slots: int) -> HostCommand:
        """Returns the command that starts the ranks of one host: ssh with a remote command, or a plain command on this machine."""
        words = (
            *(sys.executable, "-m", "unisono", "run", "--horovod", "--control-stdin", "-n", str(slots)),
            *("--nodes", str(len(self.hosts)), "--node-rank", str(index), "--on-nodes", ",".join(str(n) for _, n in self.hosts)),
            *("--rendezvous", self.rendezvous, f"--job={self.job}", *self.options, "--", *self.program),
        )
        along = [f"{key}={value}" for key, value in self.env.items() if is_forwarded(key)]
        if is_here(name):
            return HostCommand(name, ("env", *along, *words), self.secret)
        remote = f"cd {shlex.quote(str(self.folder))} && exec {shlex.join(('env', *along, *words))}"
        return HostCommand(name, (*ssh_words(name, self.port, self.key), remote), self.secret)
