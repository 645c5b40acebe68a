"""The call that `horovod.run` sends to its processes, and the results that they send back: files in a folder."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.cluster.resolve import environment
from unisono.cluster.variables import whole_number
from unisono.errors import UsageError

MODULE = "unisono.horovod._impl.launching.function_parcel"
CALL = ("-c", f"import sys; from {MODULE} import main; main(sys.argv[1])")
"""Words for Python, before the folder. Not -m: classes that are defined here would belong to `__main__`."""
FAILED_CODE = 1


@dataclass(frozen=True)
class Parcel:
    """A function with its arguments, to be called in each process."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    search: tuple[str, ...]
    """Where the caller finds its modules."""

    def write(self, folder: Path) -> None:
        """Writes the call to a folder. Raises `UsageError` for what cannot be sent to another process. Local."""
        import cloudpickle

        try:
            call = cloudpickle.dumps((self.function, self.args, self.kwargs))
        except Exception as error:
            raise UsageError(
                f"the function or its arguments cannot be sent to other processes ({type(error).__name__}: {error}) (horovod.run); "
                "open files, locks and the like inside the function"
            ) from error
        (folder / "call").write_bytes(pickle.dumps((self.search, call)))


def main(folder_name: str) -> None:
    """Makes the call in this process and leaves its result, or its traceback and a failure. Collective if the function is."""
    folder = Path(folder_name)
    try:
        search, call = pickle.loads((folder / "call").read_bytes())
        # The caller's modules are found here too; what this process finds by itself comes first.
        sys.path += [place for place in search if place not in sys.path]
        function, args, kwargs = pickle.loads(call)
        _leave_result(folder, function(*args, **kwargs))
    except SystemExit as end:
        if end.code:
            _leave_error(folder)
        elif not _is_dismissed():
            _leave_result(folder, None)
        raise
    except Exception:  # noqa: BLE001 - it is raised again, by the caller
        _leave_error(folder)
        sys.exit(FAILED_CODE)


@dataclass(frozen=True)
class _RankInGeneration:
    rank: int
    size: int
    generation: int


def _driver_connection() -> Any:
    """The library's connection to the driver, which has no assignment outside an elastic job; None if the library was not loaded.
    Local."""
    library = sys.modules.get("unisono.horovod._impl.job.process_state")
    return None if library is None else library.PROCESS.driver_connection


def _is_dismissed() -> bool:
    """Whether the elastic job continues without this process, so that its result is not waited for. Local."""
    driver = _driver_connection()
    return driver is not None and driver.is_dismissed


def _rank_in_generation() -> _RankInGeneration:
    """The rank of this process. In an elastic job it changes and only the library knows it; the last one counts, also after
    `shutdown`. Local."""
    driver = _driver_connection()
    if driver is not None and driver.assignment is not None:
        return _RankInGeneration(driver.assignment.rank, driver.assignment.size, driver.assignment.generation)
    env = environment()
    return _RankInGeneration(whole_number(env, "HOROVOD_RANK"), whole_number(env, "HOROVOD_SIZE"), 0)


def results_in(folder: Path) -> tuple[int, dict[int, Any]]:
    """Returns the size of the job (of its last generation, if it is elastic) and what each rank has returned; size 0 if none has.
    Local."""
    left = [pickle.loads(path.read_bytes()) for path in folder.glob("result-*")]
    _, size = max(((place.generation, place.size) for place, _ in left), default=(0, 0))
    return size, {place.rank: pickle.loads(result) for place, result in left}


def _leave_result(folder: Path, result: object) -> None:
    """Writes the result of this rank to the folder, with its rank and the size of the job."""
    dumped, place = _pickled_result(result), _rank_in_generation()
    _leave(folder / f"result-{place.rank}", pickle.dumps((place, dumped)))


def _leave_error(folder: Path) -> None:
    """Writes the traceback of the present exception to the folder, under this rank."""
    _leave(folder / f"error-{_rank_in_generation().rank}", traceback.format_exc().encode())


def error_of(folder: Path) -> tuple[int, str] | None:
    """Returns the rank that failed first and its traceback, as the others may have failed because of it; None if none has failed.
    Local."""
    found = sorted(folder.glob("error-*"), key=lambda path: path.stat().st_mtime_ns)
    return (int(found[0].name.rpartition("-")[2]), found[0].read_text(errors="replace")) if found else None


def _pickled_result(result: object) -> bytes:
    """Returns the pickled result; `TypeError` for one that cannot be sent back."""
    import cloudpickle

    try:
        dumped: bytes = cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(f"the result, a {type(result).__name__}, cannot be sent back ({error}); return plain values") from error
    return dumped


def _leave(path: Path, content: bytes) -> None:
    """Writes a file as a whole or not at all."""
    part = path.with_name(f"part-{path.name}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
