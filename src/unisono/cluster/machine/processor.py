"""The model of the CPU, as the system describes it. Pure, except `this_processor`."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

INTEL = "GenuineIntel"


@dataclass(frozen=True)
class Processor:
    """One model of CPU. Fields that the system does not tell are empty."""

    vendor: str = ""
    """"GenuineIntel", "AuthenticAMD", or the number of an ARM implementer."""
    family: str = ""
    model: str = ""
    name: str = ""
    """Name for people."""
    features: frozenset[str] = frozenset()
    """Features as Linux calls them: "avx2", "fma", "avx512f", ..."""

    @property
    def kind(self) -> str:
        """The properties by which libraries choose their code, on one line."""
        return " ".join(part for part in (self.vendor, self.family, self.model) if part) or self.name


def read_processor(text: str) -> Processor:
    """Pure: returns the first CPU of a text like /proc/cpuinfo, whose names differ between x86 and ARM."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return Processor(
        vendor=found.get("vendor_id") or found.get("CPU implementer", ""),
        family=found.get("cpu family") or found.get("CPU architecture", ""),
        model=found.get("model") or found.get("CPU part", ""),
        name=found.get("model name", ""),
        features=frozenset((found.get("flags") or found.get("Features", "")).split()),
    )


def this_processor() -> Processor:
    """Local: returns the CPU of this machine; where the system is not Linux only its name is known."""
    try:
        return read_processor(Path("/proc/cpuinfo").read_text())
    except OSError:
        return Processor(name=platform.processor() or platform.machine())
