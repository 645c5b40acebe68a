"""`unisono doctor`: what a job would find here, and what usually goes wrong, each with its remedy.

Facts are gathered (`gather`, `peers`, `bandwidth`), checks are pure functions of them (`checks/`), `report` shows the findings.

Imported by commands; imports cluster, comm and launch.
"""

from __future__ import annotations

from unisono.doctor.command import main

__all__ = ["main"]
