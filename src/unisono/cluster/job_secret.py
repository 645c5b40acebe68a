"""The secret of a job, which its processes prove to each other, so that no other user of the machines can take part. Local.

Launchers give a job a name, but no secret: other users can read the number of a SLURM job, or the address of rank 0. So the secret
is derived from that name with a random key in the user's home directory, which all nodes of a cluster share and only its owner can
read. It is made once. `UNISONO_TOKEN`, which `unisono run` sets for its processes, takes the place of the key; where MPI must be
asked for the address of rank 0, it hands out a secret too (`comm/engines/mpi.py`).

Without a common secret a process on another host is accepted by the public name of the job, and nothing that it sends is unpickled
(`comm/control_plane/seals.py`).
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from unisono.cluster.topology import Topology
from unisono.errors import UsageError

KEY_FILE = Path(".config/unisono/job_key")
"""In the home directory."""
LEAST_CHARACTERS = 16
"""Of a secret that is given: strangers get proofs of it, against which they can try short ones at leisure."""
MOUNTS = Path("/proc/self/mountinfo")
LOCAL_TYPES = (
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "squashfs", "apfs"),
    *("overlay", "aufs", "tmpfs", "ramfs", "rootfs", "9p", "virtiofs"),
)
"""File systems of one machine or container; all others count as shared by the nodes."""

_KEY = re.compile(r"[0-9a-f]{64}\n")
_OCTAL = re.compile(r"\\([0-7]{3})")
"""Blanks in the names of mounted folders."""


def with_secret(topology: Topology, env: Mapping[str, str]) -> Topology:
    """Local: returns the topology with the secret of the job, or with the reason why other hosts cannot know it. Makes the user's
    key if there is none."""
    if topology.world_size == 1:
        return replace(topology, secret=secrets.token_hex(16))
    given = env.get("UNISONO_TOKEN")
    if given:
        if len(given) < LEAST_CHARACTERS:
            raise UsageError(
                f"UNISONO_TOKEN has {len(given)} characters, so another user could guess it; export a random text of "
                f"{LEAST_CHARACTERS} characters or more for all processes: UNISONO_TOKEN=$(openssl rand -hex 16)"
            )
        return replace(topology, secret=derived(given, topology.token))
    if topology.address is None or not topology.token:  # MPI will be asked
        return topology
    home = Path(env.get("HOME") or "/nonexistent")
    places = [home / KEY_FILE] if home.is_dir() else []
    if topology.one_node:
        places.append(Path(tempfile.gettempdir()) / f"unisono-{os.geteuid()}.key")
    problem = f"there is no home directory {home}"
    for place in places:
        try:
            secret = derived(user_key(place), topology.token)
        except OSError as error:
            problem = f"{place} cannot be read or made ({error.strerror or error})"
            continue
        kind = "" if topology.one_node else local_type(place)
        return replace(topology, secret=secret, no_secret=f"{home} is on a file system of this host alone ({kind})" if kind else "")
    return replace(topology, no_secret=problem)


def derived(key: str, name: str) -> str:
    """Pure: returns the secret of the job `name`: another for every job, and of no use for finding the key."""
    return hmac.digest(key.encode(), f"job {name}".encode(), "sha256").hex()


def user_key(path: Path) -> str:
    """Local, blocking: returns the random key in a file that its owner alone can read; makes it if there is none.

    Processes on all nodes may do so at once, and all get the same. Raises `OSError` where no such file can be had, and `UsageError`
    for one that others can read or that is damaged.
    """
    with suppress(FileNotFoundError):
        return _read_key(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(handle)
            found = os.fstat(handle)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(None, "its file system does not keep owner and mode of a file")
        with suppress(FileExistsError):
            os.link(draft, path)  # one of all succeeds, and nobody ever sees it empty
    finally:
        Path(draft).unlink(missing_ok=True)
    return _read_key(path)


def local_type(path: Path, mounts: Path | None = None) -> str:
    """Local: returns the type of the file system of `path` if only this machine has it, else (or where it is unknown) an empty
    text."""
    try:
        lines = (mounts or MOUNTS).read_text(errors="surrogateescape").splitlines()  # names as the file system has them
    except OSError:
        return ""
    kind, longest = "", -1
    for line in lines:
        mounted, _, described = line.partition(" - ")
        place = _OCTAL.sub(lambda one: chr(int(one[1], 8)), mounted.split(" ")[4])
        if path.resolve().is_relative_to(place) and len(place) >= longest:  # a later one lies on top
            kind, longest = described.split(" ")[0], len(place)
    return kind if kind in LOCAL_TYPES else ""


def _read_key(path: Path) -> str:
    """Returns the key in a file; raises `PermissionError` if it is another user's, `UsageError` if others can read it or it is
    damaged."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            raise PermissionError(None, "it belongs to another user")
        text = os.pread(handle, 128, 0).decode(errors="replace")
    finally:
        os.close(handle)
    wrong = (
        f"has mode {stat.S_IMODE(found.st_mode):04o}, so other users have access"
        if found.st_mode & 0o077
        else "is damaged"
        if not _KEY.fullmatch(text)
        else ""
    )
    if wrong:
        raise UsageError(f"{path}, from which the secrets of your jobs are derived, {wrong}; remove it, and a new one is made")
    return text
