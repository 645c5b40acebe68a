"""Node-local staging: files are copied once into a folder of this node (a local disk, /dev/shm) and read from there.

Several processes of a node may stage the same files at once: one copies, the others wait and find them there. A copy appears under
its name when it is whole, and it is made again when size or time of the original differ.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unisono.data.sources.file_list import Files, PathName, expand
from unisono.errors import UsageError

RESERVE_BYTES = 256 * 2**20
"""Space that is left free on the disk of a node."""
UNFINISHED = ".part"


@dataclass(frozen=True)
class Copy:
    """A file and its copy in the local folder."""

    original: Path
    local: Path

    @property
    def is_there(self) -> bool:
        """Whether the copy exists, with size and time of the original."""
        if not self.local.is_file():
            return False
        wanted, found = self.original.stat(), self.local.stat()
        return (wanted.st_size, wanted.st_mtime_ns) == (found.st_size, found.st_mtime_ns)

    def make(self) -> None:
        """Copies the file, under another name until it is complete."""
        self.local.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.local.with_name(self.local.name + UNFINISHED)
        shutil.copyfile(self.original, unfinished)
        original = self.original.stat()
        os.utime(unfinished, ns=(original.st_atime_ns, original.st_mtime_ns))
        unfinished.replace(self.local)


def stage(files: Files, folder: PathName, reserve_bytes: int = RESERVE_BYTES) -> list[Path]:
    """Copies files to a disk of this node, once, and returns the paths of the copies.

    Every process of a node may call it: one copies, the others wait and find the copies. A file that is there already is
    not copied again, unless size or time of the original differ. Folders, such as Zarr stores, are copied as a whole. A
    copy appears under its name only when it is complete.

    If the disk has too little space, `UsageError` is raised before anything is copied. Missing and empty files are refused.
    Local, blocking.

    Example:
        import numpy as np
        import unisono as un

        np.savez("part.npz", x=np.zeros((10, 3)), y=np.arange(10))
        copies = un.stage("part.npz", "local_disk")
        len(un.as_source(copies[0]))  # -> 10

    Args:
        files: A path, a pattern such as "data/*.h5", a list of these, or a `.txt` file with one path on each line.
        folder: Where the copies go, for example "/dev/shm/me" or the value of TMPDIR; made if it is not there.
        reserve_bytes: Space that is left free on that disk.
    """
    originals = expand(files, "staging", folders=True)
    local = Path(folder).expanduser()
    try:
        local.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the staging folder {local} cannot be created: {error.strerror}; give a local folder where you may write"
        ) from None
    homes = [_home(original, local) for original in originals]
    with _alone(local):
        copies = [copy for original, home in zip(originals, homes, strict=True) for copy in _copies_to_make(original, home)]
        missing = [copy for copy in copies if not copy.is_there]
        _expect_space(missing, local, reserve_bytes)
        for copy in missing:
            copy.make()
        for original, home in zip(originals, homes, strict=True):
            if original.is_dir():
                _remove_strangers(home, {copy.local for copy in copies})
    return homes


def _home(original: Path, local: Path) -> Path:
    """Returns the local folder of a file; two files of one name from different folders have different ones."""
    resolved = original.resolve()
    return local / hashlib.sha256(str(resolved.parent).encode()).hexdigest()[:12] / resolved.name


def _copies_to_make(original: Path, home: Path) -> Iterator[Copy]:
    """Yields the copy below `home` of each file: of the original itself, or of all files below it."""
    if original.is_dir():
        for path in sorted(original.rglob("*")):
            if path.is_file():
                yield Copy(path, home / path.relative_to(original))
    else:
        yield Copy(original, home)


def _expect_space(missing: Sequence[Copy], local: Path, reserve_bytes: int) -> None:
    """Refuses copies that would leave less than `reserve_bytes` free."""
    needed = sum(copy.original.stat().st_size for copy in missing)
    free = shutil.disk_usage(local).free - reserve_bytes
    if needed > max(0, free):
        raise UsageError(
            f"staging needs {needed / 2**30:.2f} GiB in {local}, but only {max(0, free) / 2**30:.2f} GiB are free there "
            f"({reserve_bytes / 2**20:.0f} MiB stay reserved); free some space, stage fewer files, or read the originals"
        )


def _remove_strangers(home: Path, own: set[Path]) -> None:
    """Removes files that the original store no longer has from its copy."""
    for path in home.rglob("*"):
        if path.is_file() and path not in own:
            path.unlink()


@contextmanager
def _alone(local: Path) -> Iterator[None]:
    """A context for one process of this node at a time; the system releases the lock when its holder dies."""
    with (local / ".staging.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
