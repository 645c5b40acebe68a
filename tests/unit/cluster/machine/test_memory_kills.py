"""How often the system ended a process for want of memory, as both kinds of control groups write it down."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.cluster.machine.memory_kills import num_memory_kills

EVENTS = "low 0\nhigh 12\nmax 7\noom 5\noom_kill {count}\noom_group_kill 0\n"
"""memory.events, version 2."""
CONTROL = "oom_kill_disable 0\nunder_oom 1\noom_kill {count}\n"
"""memory.oom_control, version 1."""
GROUPS = "12:pids:/job\n11:memory:/slurm/job_7/step_0\n1:name=systemd:/job\n0::/job\n"
"""/proc/self/cgroup of a machine with both."""


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_version_2(tmp_path: Path) -> None:
    membership = written(tmp_path / "cgroup", "0::/user.slice/job\n")
    root = tmp_path / "sys"
    file = written(root / "user.slice" / "job" / "memory.events", EVENTS.format(count=3))
    written(root / "memory.events", EVENTS.format(count=99))
    assert num_memory_kills(root, membership) == 3
    file.write_text(EVENTS.format(count=4))
    assert num_memory_kills(root, membership) == 4, "it is read anew each time"


def test_version_1(tmp_path: Path) -> None:
    membership = written(tmp_path / "cgroup", GROUPS)
    root = tmp_path / "sys"
    written(root / "memory" / "slurm" / "job_7" / "step_0" / "memory.oom_control", CONTROL.format(count=2))
    assert num_memory_kills(root, membership) == 2


@pytest.mark.parametrize(
    ("groups", "file", "text"), [("0::/", "memory.events", EVENTS), (GROUPS, "memory/memory.oom_control", CONTROL)]
)
def test_in_a_container_the_path_may_be_that_of_the_host(tmp_path: Path, groups: str, file: str, text: str) -> None:
    membership = written(tmp_path / "cgroup", groups.replace("::/", "::/docker/0a1b/job"))
    written(tmp_path / "sys" / file, text.format(count=5))
    assert num_memory_kills(tmp_path / "sys", membership) == 5


def test_where_memory_is_counted_by_version_2_beside_version_1(tmp_path: Path) -> None:
    membership = written(tmp_path / "cgroup", "1:name=systemd:/job\n0::/job\n")
    written(tmp_path / "sys" / "job" / "memory.events", EVENTS.format(count=6))
    assert num_memory_kills(tmp_path / "sys", membership) == 6


NOTHING = {
    "no groups": ("", {}),
    "no counts": ("0::/job\n", {}),
    "an old kernel": ("11:memory:/job\n", {"memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}),
    "something else": ("0::/job\n", {"job/memory.events": "oom_kill many\n"}),
    "an empty file": ("0::/job\n", {"job/memory.events": ""}),
    "lines that are none": ("nonsense\n\n:\n0::/job\n", {"job/memory.events": "\n"}),
}


@pytest.mark.parametrize("what", NOTHING)
def test_without_a_counter_it_is_0(tmp_path: Path, what: str) -> None:
    groups, files = NOTHING[what]
    membership = written(tmp_path / "cgroup", groups)
    for name, text in files.items():
        written(tmp_path / "sys" / name, text)
    assert num_memory_kills(tmp_path / "sys", membership) == 0


def test_a_system_without_groups_counts_nothing(tmp_path: Path) -> None:
    assert num_memory_kills(tmp_path, tmp_path / "missing") == 0


def test_on_this_machine_it_is_a_number() -> None:
    assert num_memory_kills() >= 0
