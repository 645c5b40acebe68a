"""The table of what was tried, in the form of Horovod's. Local, written by rank 0."""

from __future__ import annotations

import sys
from io import FileIO

from unisono.compat.horovod.autotune_search import Setting

HEAD = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score"


class Log:
    """A line for each sample; the last one is what was kept. `OSError` if the file cannot be written; later errors end it with a
    warning. Without a path there is none."""

    def __init__(self, path: str, has_cache: bool) -> None:
        self._path = path
        self._has_cache = has_cache
        self._file: FileIO | None = FileIO(path, "w") if path else None
        try:
            self._write(HEAD)
        except OSError:
            self.close()
            raise

    def add(self, setting: Setting, score: float) -> None:
        """A sample: megabytes per second."""
        cycle_ms = setting.cycle_time_s * 1e3
        try:
            self._write(f"0,0,0,{int(self._has_cache)},{cycle_ms:g},{setting.fusion_threshold_bytes},{score:.6g}")
        except OSError as error:
            self.close()
            print(
                f"unisono: the log of the autotuning ends here: {self._path} cannot be written any more: {error.strerror} "
                "(HOROVOD_AUTOTUNE_LOG); the tuning goes on",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(f"{line}\n".encode())
