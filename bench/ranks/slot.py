"""A rank's slot in a benchmark: it sleeps on a socket, does what the conductor asks, and answers.

A rank that waits for its turn is blocked in the kernel, so the contenders that are not measured use no CPU.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

PR_SET_PDEATHSIG = 1


def attend(rank: int, size: int, versions: Mapping[str, str], actions: Mapping[str, Callable[..., Any]]) -> None:
    """Local, blocking: serve the conductor whose socket the command line names, until it hangs up."""
    address, group = sys.argv[1:3]
    if sys.platform.startswith("linux"):
        # Whoever started this rank ends with the conductor; so does the rank, even in the middle of a collective.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(address)
        said = line.makefile("rw", encoding="utf-8")
        versions = {"Python": platform.python_version(), **versions}
        _say(said, {"group": group, "rank": rank, "size": size, "pid": os.getpid(), "versions": versions})
        while text := said.readline():
            asked = json.loads(text)
            try:
                answer = {"result": actions[asked["do"]](**asked["with"])}
            except Exception:  # noqa: BLE001 -- the conductor shows it and ends the group
                answer = {"error": traceback.format_exc()}
            _say(said, answer)


def stay_on_part(part: int, num_parts: int) -> None:
    """Local, before a framework counts them: on our part of the CPUs, as Unisono binds workers; alone everywhere, as it does."""
    cpus = sorted(os.sched_getaffinity(0))
    if num_parts > 1 and (own := cpus[len(cpus) * part // num_parts : len(cpus) * (part + 1) // num_parts]):
        os.sched_setaffinity(0, own)


def version_of(module: str) -> dict[str, str]:
    """Local: of the package that the module is of."""
    package = module.partition(".")[0]
    return {package: importlib.import_module(package).__version__}


def _say(said: Any, message: Mapping[str, Any]) -> None:
    said.write(json.dumps(message) + "\n")
    said.flush()
