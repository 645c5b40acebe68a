"""Downloads a file, whole and checked or not at all: it has a temporary name until its checksum was compared."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import queue
import shutil
import tarfile
import threading
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from unisono.data.unpacked_size import TarLimit, check_zip
from unisono.errors import UsageError
from unisono.version import __version__

CONNECT_S = 15.0
"""Time in which an address must answer, and longest pause of a transfer."""
CHUNK_BYTES = 1 << 18

Progress = Callable[[int, int | None], object]
"""Called with the number of bytes received, and the total where it is known."""


class _Failed(Exception):
    """Raised where one address did not give the file; there may be others."""


def download(
    urls: Sequence[str], to: Path, md5: str | None, progress: Progress = lambda _done, _total: None, connect_s: float = CONNECT_S
) -> None:
    """Local, blocking: downloads the file from the first address that gives it. Nothing is left behind on failure."""
    said = []
    for url in urls:
        try:
            with _temporary(to) as partial:
                _download_once(url, partial, md5, progress, connect_s)
                partial.replace(to)
        except _Failed as why:
            said.append(f"{url}: {why}")
        else:
            return
    raise UsageError(
        f"{to.name} could not be downloaded ({'; '.join(said)}); if this machine has no internet access, download the file on "
        f"another one and copy it to {to}"
    )


def unpack(archive: Path, folder: Path) -> None:
    """Local, blocking: unpacks an archive that holds one folder; the folder appears under its name only when it is complete."""
    with _temporary(folder) as partial:
        partial.mkdir()
        try:
            if archive.suffix == ".zip":
                check_zip(archive)
                shutil.unpack_archive(archive, partial)
            else:
                with tarfile.open(archive) as packed:
                    packed.extractall(partial, filter=TarLimit(archive))
        except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise UsageError(f"{archive} cannot be unpacked ({error}); remove it and get it again") from None
        if not (partial / folder.name).is_dir():
            raise UsageError(f"{archive} does not hold the folder {folder.name}; remove it and get it again")
        (partial / folder.name).replace(folder)


@contextlib.contextmanager
def _temporary(beside: Path) -> Iterator[Path]:
    """A context that gives a temporary name in the same folder; a file of that name is removed at the end."""
    name = beside.parent / f".{beside.name}.{uuid.uuid4().hex[:12]}.part"
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield name
        finally:
            if name.is_dir():
                shutil.rmtree(name)
            else:
                name.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {beside} ({error.strerror or error}); choose another folder (--root)") from None


def _download_once(url: str, to: Path, md5: str | None, progress: Progress, connect_s: float) -> None:
    """Downloads `url` to the file `to`; raises if it has no space, breaks off, or has another checksum than `md5`."""
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    with _opened(url, connect_s) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        if total is not None and total > (free := shutil.disk_usage(to.parent).free):
            raise UsageError(
                f"{url} has {total} bytes, but only {free} are free in {to.parent}; free some space, or choose another --root"
            )
        with to.open("xb") as file:
            progress(0, total)
            while chunk := _next_chunk(answer):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(done, total)
    if total is not None and done != total:
        raise _Failed(f"the download was interrupted after {done} of {total} bytes")
    if md5 is not None and digest.hexdigest() != md5:
        raise _Failed(f"the downloaded file is not the published one (md5 {digest.hexdigest()}, expected {md5})")


def _next_chunk(answer: Any) -> bytes:
    """Returns the next bytes of the answer; b"" at its end."""
    try:
        chunk: bytes = answer.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(f"the download was interrupted: {error}") from None
    return chunk


def _opened(url: str, connect_s: float) -> Any:
    """Opens an address and returns its answer, whose body can be read. In a thread, because a name lookup has no time limit, and
    each of the many addresses of a host would have its own time-out."""
    request = urllib.request.Request(url, headers={"User-Agent": f"unisono/{__version__}"})
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(urllib.request.urlopen(request, timeout=connect_s))
        except (OSError, http.client.HTTPException, ValueError) as error:
            found.put(error)

    threading.Thread(target=ask, name="unisono-connect", daemon=True).start()
    try:
        answer = found.get(timeout=connect_s)
    except queue.Empty:
        raise _Failed(f"no answer within {connect_s:g} s") from None
    if isinstance(answer, Exception):
        raise _Failed(str(getattr(answer, "reason", "") or answer))
    return answer
