"""Where a result was measured: the machine, the versions, the command, what else was running."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import psutil

from bench.groups import ROOT


def describe_machine() -> dict[str, str]:
    """Local: what decides speed here. No names of hosts or users."""
    return {
        "CPU": _cpu(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, glibc {platform.libc_ver()[1]}",
        "virtual machine": "yes" if "hypervisor" in _read("/proc/cpuinfo") else "not seen",
        "huge pages": _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "Python": platform.python_version(),
    }


def describe_moment() -> dict[str, str]:
    """Local: when, at which commit, and how busy the machine was with other things."""
    return {
        "at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def stolen_s() -> float:
    """Local: CPU seconds that the host of this virtual machine has given to others since it started."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def command_line() -> str:
    """Local: the command that makes this result, as one types it in the repository."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    return " ".join([".venv/bin/python -m", module.name if module else Path(sys.argv[0]).name, *sys.argv[1:]])


def _cpu() -> str:
    found = re.search(r"model name\s*:\s*(.+)", _read("/proc/cpuinfo"))
    return found[1].strip() if found else platform.processor() or "unknown"


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD")
    if not commit:
        return "not a git checkout"
    return f"{commit}{' with uncommitted changes' if git('status', '--porcelain', '--', 'src', 'bench') else ''}"


def _chosen(text: str) -> str:
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
