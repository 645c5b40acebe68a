"""Prints the report on standard output, and progress and problems on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from unisono.doctor.facts import Job
from unisono.doctor.finding import Finding
from unisono.doctor.report import Page, Verdicts, as_json


class ReportOutput:
    """Prints the report of one process. Local. Silent while `is_printing` is false: rank 0 prints for all."""

    def __init__(self, env: Mapping[str, str], in_json: bool) -> None:
        coloured = not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        self._page = Page(colour=coloured and sys.stdout.isatty())
        self._in_json = in_json
        self._on_terminal = sys.stderr.isatty()
        self._line_is_used = False
        self.is_printing = True

    def progress(self, text: str) -> None:
        """Shows what is being done, on a line that the next call overwrites; only on a terminal. Empty text clears the line."""
        if self.is_printing and self._on_terminal and (text or self._line_is_used):
            sys.stderr.write(f"\r\x1b[K{text}{' ...' if text else ''}")
            sys.stderr.flush()
            self._line_is_used = bool(text)

    def show_verdicts(self, verdicts: Verdicts) -> None:
        """Prints at once what the launchers' variables say, as the rest takes seconds."""
        if not self._in_json:
            self._print(self._page.verdicts(verdicts))

    def show(self, verdicts: Verdicts, job: Job, findings: Sequence[Finding]) -> None:
        """Prints the rest of the report, or all of it as JSON."""
        self._print([as_json(verdicts, job, findings)] if self._in_json else self._page.findings(job, findings))

    def print_problems(self, findings: Sequence[Finding]) -> int:
        """Prints problems, one line each, on a rank other than 0; returns the exit code."""
        for finding in findings:
            print(f"unisono doctor: {finding.level} {finding.fact}; {finding.remedy}", file=sys.stderr, flush=True)
        return int(bool(findings))

    def _print(self, lines: Iterable[str]) -> None:
        """Clears the progress line, and prints the lines if this process prints."""
        self.progress("")
        if self.is_printing:
            print("\n".join(lines), flush=True)
