"""Waiting on a word of shared memory, and the order in which other processes see our writes (Linux, no compiler needed).

The pattern everywhere is: write the data, `fence`, write a counter, `wake`; the other side waits for the counter, `fence`,
reads the data. On x86 stores are seen in their order and loads happen in theirs, so a fence costs nothing. On other
processors (ARM, POWER, RISC-V) it is the kernel's `membarrier`, whose global expedited form is documented to be a full barrier in
the caller; as nobody registers for it, it interrupts no other processor.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
import threading
from collections.abc import Callable, Mapping

from unisono.errors import UsageError

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_MEMBARRIER_QUERY, _MEMBARRIER_GLOBAL_EXPEDITED = 0, 1 << 1
_EVERYBODY = 2**31 - 1
_NUMBERS: Mapping[str, tuple[int, int]] = {  # machine: (futex, membarrier)
    "x86_64": (202, 324),
    "aarch64": (98, 283),
    "riscv64": (98, 283),
    "ppc64le": (221, 365),
    "s390x": (238, 356),
}
_ORDERED = ("x86_64",)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class Futex:
    """The two system calls, looked up once for a process."""

    def __init__(self) -> None:
        machine = platform.machine()
        if sys.platform != "linux" or machine not in _NUMBERS:
            raise UsageError(
                f"engine shm needs Linux on one of {', '.join(_NUMBERS)}; this is {sys.platform} on {machine}; use --engine gloo"
            )
        self._number, self._barrier_number = _NUMBERS[machine]
        # Sleeping gives up the interpreter lock; waking is too short to be worth it.
        self._sleep = ctypes.CDLL(None, use_errno=True).syscall
        self._short = ctypes.PyDLL(None).syscall
        self._short.restype = ctypes.c_long
        self._sleep.restype = ctypes.c_long
        wake_types = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
        self._short.argtypes = wake_types
        self._sleep.argtypes = (*wake_types, ctypes.POINTER(_Timespec), ctypes.c_void_p, ctypes.c_uint32)
        self.fence: Callable[[], None] = _nothing if machine in _ORDERED else self._membarrier()
        self.full_fence: Callable[[], None] = self._locked if machine in _ORDERED else self.fence
        self._lock = threading.Lock()

    def wait(self, address: int, value: int, timeout_s: float) -> None:
        """Blocking until this word is woken or no longer holds `value`, or the time is over (the caller checks again)."""
        whole = int(timeout_s)
        limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
        if self._sleep(self._number, address, _FUTEX_WAIT, value, limit, None, 0) == -1:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
                raise OSError(code, "futex wait failed")

    def wake(self, address: int) -> None:
        """Not blocking: wakes all threads that wait on this word, in every process."""
        self._short(self._number, address, _FUTEX_WAKE, _EVERYBODY)

    def _locked(self) -> None:
        """A full fence: our last write is visible to all before our next read happens. An atomic operation does that on x86, and
        taking a lock is one. A caller that relies on it must sleep in slices: it is how every Python takes a lock, not what
        Python promises."""
        if self._lock.acquire(blocking=False):
            self._lock.release()

    def _membarrier(self) -> Callable[[], None]:
        """Returns the fence that makes all processors keep the order; raises `UsageError` where the kernel offers none."""
        short, number = self._short, self._barrier_number
        # The call's first argument is an int; passing it as the pointer-sized second word is the same register.
        offered = short(number, _MEMBARRIER_QUERY, 0, 0)
        if offered < 0 or not offered & _MEMBARRIER_GLOBAL_EXPEDITED:
            raise UsageError(
                "engine shm needs the kernel's membarrier call on this processor, which this kernel or container refuses; "
                "use --engine gloo"
            )

        def fence() -> None:
            short(number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0)

        return fence


def _nothing() -> None:
    """The fence of processors that keep the order by themselves: does nothing."""
