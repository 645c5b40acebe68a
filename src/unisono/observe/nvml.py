"""Reads the load and memory of a GPU from the library of NVIDIA's driver: no package, no CUDA context, no wait."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpu:
    """One GPU by its UUID, so that renumbering by CUDA_VISIBLE_DEVICES does not matter. All methods are local and quick."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def find(cls, uuid: str) -> Gpu | None:
        """Finds a GPU; None where the driver's library is missing or does not know it."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
            return None
        return cls(library, handle)

    def sample(self) -> Mapping[str, float]:
        """Samples load (share of the last moment in which a kernel ran) and memory in use by all processes, as far as the driver
        says."""
        found: dict[str, float] = {}
        utilization, memory = _Utilization(), _Memory()
        if not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(utilization)):
            found["gpu_load"] = utilization.gpu / 100
        if not self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            found["gpu_memory_bytes"] = memory.used
        return found
