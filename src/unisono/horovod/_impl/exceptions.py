"""The exceptions that programs written for Horovod catch."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed: ranks disagree on it, a peer is gone, or the communication has ended."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts come or go, so the job begins again with its present state. `skip_sync`: some went and none came, so the remaining
    ranks have the same state already."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised here, as nothing is compiled that could be of another version; programs name it in `except`."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} has version {version}, but had version {installed_version} when it was installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version
