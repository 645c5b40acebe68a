"""What goes to the terminal: the report on standard output, progress and complaints on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from unisono.doctor.facts import Job
from unisono.doctor.finding import Finding
from unisono.doctor.report import Page, Verdicts, as_json


class Voice:
    """Local. Silent while `speaks` is false: rank 0 speaks for all."""

    def __init__(self, env: Mapping[str, str], in_json: bool) -> None:
        coloured = not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        self._page = Page(colour=coloured and sys.stdout.isatty())
        self._in_json = in_json
        self._on_terminal = sys.stderr.isatty()
        self._line_is_used = False
        self.speaks = True

    def progress(self, text: str) -> None:
        """What is being done, on a line that the next one overwrites; only on a terminal. Empty clears the line."""
        if self.speaks and self._on_terminal and (text or self._line_is_used):
            sys.stderr.write(f"\r\x1b[K{text}{' ...' if text else ''}")
            sys.stderr.flush()
            self._line_is_used = bool(text)

    def show_verdicts(self, verdicts: Verdicts) -> None:
        """At once: what follows takes seconds."""
        if not self._in_json:
            self._print(self._page.verdicts(verdicts))

    def show(self, verdicts: Verdicts, job: Job, findings: Sequence[Finding]) -> None:
        """The rest of the report, or all of it in JSON."""
        self._print([as_json(verdicts, job, findings)] if self._in_json else self._page.findings(job, findings))

    def complain(self, findings: Sequence[Finding]) -> int:
        """From a rank that is not 0, in one line each; the exit code."""
        for finding in findings:
            print(f"unisono doctor: {finding.level} {finding.fact}; {finding.remedy}", file=sys.stderr, flush=True)
        return int(bool(findings))

    def _print(self, lines: Iterable[str]) -> None:
        self.progress("")
        if self.speaks:
            print("\n".join(lines), flush=True)
