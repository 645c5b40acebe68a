"""Samples each worker's use of CPUs, memory and GPU while it trains, and counts its waits for the GPU."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time, time
from typing import TYPE_CHECKING, Any

from unisono.events import Observer, RunStarted, StepDone
from unisono.observe.jsonl import LineFile
from unisono.observe.nvml import Gpu

if TYPE_CHECKING:
    from unisono.observe.host_waits import HostWaits, SyncMode

STATUS = Path("/proc/self/status")
FIRST_S = 0.1
"""When the first row is taken at the latest, so that a short run has one too."""


class Monitor(Observer):
    """Samples this worker every `interval_s` seconds into `folder/rank-N.jsonl`, from the start of a run until `close`.

    A row holds `cpu_load` (CPUs that this process kept busy since the row before), `rss_bytes`, and on a GPU `gpu_load` (the share
    of the last moment in which a kernel ran, 0 to 1) and `gpu_memory_bytes` (in use on it by all processes). On a GPU the waits of
    training steps for it are counted too. Local; a failure to write is raised by `close`.
    """

    def __init__(
        self,
        folder: Path,
        interval_s: float = 1.0,
        rank: int = 0,
        mode_of: Callable[[str], SyncMode | None] | None = None,
    ) -> None:
        """`mode_of`: returns torch's mode for waits on a device; for tests."""
        self._file = LineFile(folder / f"rank-{rank}.jsonl")
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._totals: dict[str, _Total] = {}
        self._num_rows = 0
        self._failure: Exception | None = None
        self._mode_of = mode_of
        self._waits: HostWaits | None = None
        self._num_steps = 0

    def started(self, event: RunStarted) -> None:
        """Starts the thread that samples, and counts the waits of the calling thread."""
        from unisono.observe.host_waits import HostWaits, sync_mode_of

        self._file.open()
        if (mode := (self._mode_of or sync_mode_of)(event.device)) is not None:
            self._waits = HostWaits(mode)
            self._waits.begin()
        gpu = _gpu_of(event.device)
        self._thread = threading.Thread(target=self._watch, args=(gpu,), name="unisono-monitor", daemon=True)
        self._thread.start()

    def step(self, event: StepDone) -> None:  # noqa: ARG002
        """Counts the steps among which the waits are divided."""
        self._num_steps += 1

    def summary(self) -> dict[str, Any]:
        """Local: mean and peak of each quantity that was sampled, e.g. {"cpu_load": {"mean": 0.9, "peak": 1.0}, ...}. The peak of
        the memory is that of the whole process, which no sample can miss. `host_waits`: how often training steps waited for the
        GPU, and where."""
        found: dict[str, Any] = {"num_rows": self._num_rows}
        for name, total in list(self._totals.items()):
            peak = max(total.peak, peak_rss_bytes()) if name == "rss_bytes" else total.peak
            found[name] = {"mean": total.sum / total.count, "peak": peak}
        if self._waits is not None and self._waits.counts:
            found["host_waits"] = self._waits.summary(self._num_steps)
        return found

    def close(self) -> None:
        if self._waits is not None:
            self._waits.end()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            self._file.drop()
        self._file.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _watch(self, gpu: Gpu | None) -> None:
        """Samples CPU, memory and GPU at intervals, in a thread, until stopped; keeps an error for `close`."""
        began = perf_counter()
        wall_s, cpu_s = began, process_time()
        stopping = self._stop.wait(min(FIRST_S, self._interval_s))
        while True:
            now_wall_s, now_cpu_s = perf_counter(), process_time()
            row = {
                "cpu_load": (now_cpu_s - cpu_s) / max(now_wall_s - wall_s, 1e-9),
                "rss_bytes": rss_bytes(),
                **(gpu.sample() if gpu is not None else {}),
            }
            wall_s, cpu_s = now_wall_s, now_cpu_s
            try:
                self._note(row, now_wall_s - began)
            except Exception as error:  # noqa: BLE001 -- raised by `close`, in the thread of the run
                self._failure = error
                return
            if stopping:
                return
            stopping = self._stop.wait(self._interval_s)

    def _note(self, row: Mapping[str, float], wall_s: float) -> None:
        """Adds a sample to the totals and to the file."""
        for name, number in row.items():
            self._totals.setdefault(name, _Total()).add(number)
        self._num_rows += 1
        self._file.add({"unix_s": time(), "wall_s": wall_s, **row})
        self._file.flush()


class _Total:
    def __init__(self) -> None:
        self.sum, self.count, self.peak = 0.0, 0, 0.0

    def add(self, number: float) -> None:
        """Adds a sample to sum, count and peak."""
        self.sum += number
        self.count += 1
        self.peak = max(self.peak, number)


def describe_gpus(monitors: Sequence[Mapping[str, Any]]) -> str:
    """Pure: how busy the GPUs were and how often the host waited for them, from the summaries of all ranks; empty without GPUs."""
    parts = []
    loads = {rank: one["gpu_load"]["mean"] for rank, one in enumerate(monitors) if "gpu_load" in one}
    if loads:
        text = f"busy {sum(loads.values()) / len(loads):.0%} of the time"
        least = min(loads, key=lambda rank: loads[rank])
        parts.append(f"the GPU was {text}" if len(loads) == 1 else f"the GPUs were {text} (rank {least} {loads[least]:.0%})")
    waits = [one["host_waits"] for one in monitors if "host_waits" in one]
    if waits:
        num, num_steps = sum(one["num"] for one in waits), waits[0]["num_steps"]
        text = f"the host waited for the GPU {num:,} times in {num_steps:,} training steps"
        most = max((place for one in waits for place in one["places"].items()), key=lambda place: place[1], default=None)
        parts.append(text if most is None else f"{text}, most often in {most[0]}")
    return "; ".join(parts)


def rss_bytes() -> int:
    """Local: bytes of memory that this process holds now; where the system does not say (macOS), the most that it ever held."""
    try:
        status = STATUS.read_text()
    except FileNotFoundError:
        return peak_rss_bytes()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kilobytes) << 10


def peak_rss_bytes() -> int:
    """Local: the most bytes of memory that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _gpu_of(device: str) -> Gpu | None:
    """Returns the GPU of a device, to be sampled; None for a CPU, or if the driver does not know it."""
    if not device.startswith("cuda"):
        return None
    import torch

    return Gpu.find(f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}")
