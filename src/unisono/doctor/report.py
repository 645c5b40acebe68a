"""Formats the report as text or JSON. Pure: it only shows findings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from unisono.cluster.topology import NotThisLauncher, Topology
from unisono.doctor.facts import Job, describe_ranks, with_unit
from unisono.doctor.finding import FAIL, OK, WARN, Finding
from unisono.errors import UsageError
from unisono.version import __version__

Verdicts = Sequence[tuple[str, Topology | NotThisLauncher | UsageError]]

GREEN, YELLOW, RED, BOLD = 32, 33, 31, 1
COLOURS = ((OK, GREEN), (WARN, YELLOW), (FAIL, RED))
LAST = ("engine", "bandwidth")
"""Checks of the links between ranks, which are shown after the nodes."""
KEYS: Mapping[str, str] = {"num_expected": "asked"}
"""Fields of a job that have another name in the JSON report."""


class Page:
    """Makes the lines of the report, with or without colour."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def verdicts(self, verdicts: Verdicts) -> Iterator[str]:
        """The lines that show what each launcher's variables say; a star marks the answer that is used."""
        counts = deciding_launcher(verdicts)
        yield self._paint("launcher", BOLD)
        for name, answer in verdicts:
            star = "*" if name == counts else " "
            yield f"  {star} {name:<10} {_kind(answer):<6} {_reason(answer)}"

    def findings(self, job: Job, findings: Sequence[Finding]) -> Iterator[str]:
        """The lines of the findings about the job, its nodes (equal ones together) and the links between ranks."""
        whole = [finding for finding in findings if not finding.node and finding.check not in LAST]
        yield from self._section("the job", whole)
        for title, together in _nodes(job, findings):
            yield from self._section(title, together)
        yield from self._section("between ranks", [finding for finding in findings if finding.check in LAST])
        warnings, failures = (sum(finding.level == level for finding in findings) for level in (WARN, FAIL))
        summary = (
            f"{with_unit(failures, 'failure')}, {with_unit(warnings, 'warning')}" if warnings or failures else "no problems found"
        )
        yield ""
        yield self._paint(summary, RED if failures else YELLOW if warnings else GREEN)

    def _section(self, title: str, findings: Sequence[Finding]) -> Iterator[str]:
        """Yields the lines of one section: the title, then each finding with its remedy."""
        if findings:
            yield ""
            yield self._paint(title, BOLD)
        for finding in findings:
            colour = dict(COLOURS)[finding.level]
            yield f"  {self._paint(f'{finding.level:<4}', colour)}  {finding.check:<9}  {finding.fact}"
            if finding.remedy:
                yield f"        {self._paint('->', colour)} {finding.remedy}"

    def _paint(self, text: str, colour: int) -> str:
        """Returns the text in this colour, if colours are used."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text


def as_json(verdicts: Verdicts, job: Job, findings: Sequence[Finding]) -> str:
    """The whole report as one JSON object."""
    counts = deciding_launcher(verdicts)
    whole = {
        "unisono": __version__,
        "ok": all(finding.level != FAIL for finding in findings),
        "verdicts": [
            {"resolver": name, "answer": _kind(answer), "reason": _reason(answer), "counts": name == counts}
            for name, answer in verdicts
        ],
        **{KEYS.get(name, name): value for name, value in asdict(job).items() if name not in ("ranks", "measurements")},
        "findings": [asdict(finding) for finding in findings],
        "measurements": [asdict(one) for one in job.measurements],
        "ranks": [facts.plain() for facts in job.ranks],
    }
    return json.dumps(whole, indent=1)


def deciding_launcher(verdicts: Verdicts) -> str | None:
    """The launcher whose answer is used; None where inconsistent variables come first."""
    for name, answer in verdicts:
        if isinstance(answer, UsageError):
            return None
        if isinstance(answer, Topology):
            return name
    return None


def _kind(answer: Topology | NotThisLauncher | UsageError) -> str:
    """Returns 'yes', 'no' or 'error' for the answer of a launcher's variables."""
    return "yes" if isinstance(answer, Topology) else "no" if isinstance(answer, NotThisLauncher) else "error"


def _reason(answer: Topology | NotThisLauncher | UsageError) -> str:
    """Returns what a launcher's variables say in words: the rank and its peers, or why they do not apply."""
    if isinstance(answer, NotThisLauncher):
        return answer.reason
    if isinstance(answer, UsageError):
        return str(answer)
    if answer.launcher == "local":
        return "one process, started alone"
    node = "" if answer.node_rank is None else f" on node {answer.node_rank} of {answer.num_nodes}"
    meeting = f"ranks meet at {answer.address}, from port {answer.port}" if answer.address else "MPI knows where rank 0 is"
    place = f"rank {answer.global_rank} of {answer.world_size}, local rank {answer.local_rank} of {answer.local_size}{node}"
    return f"{place}; {meeting}" if answer.world_size > 1 else place


def _nodes(job: Job, findings: Sequence[Finding]) -> Iterator[tuple[str, Sequence[Finding]]]:
    """Yields a title and the findings of each node; nodes with equal findings share one entry."""
    alike: dict[tuple[Finding, ...], list[str]] = {}
    for node in job.nodes:
        own = tuple(replace(one, node="") for one in findings if one.node == node)
        alike.setdefault(own, []).append(node)
    for own, nodes in alike.items():
        ranks = [facts for node in nodes for facts in job.nodes[node]]
        hosts = list(dict.fromkeys(facts.host for facts in ranks))
        shown = f"{', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}"
        names = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {with_unit(len(nodes) - 1, 'other')} with the same findings"
        title = f"{names}: host {shown}, {describe_ranks([facts.rank for facts in ranks])}"
        yield title, own
