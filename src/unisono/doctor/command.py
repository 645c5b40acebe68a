"""The verb `doctor`: shows who this process is at once, then gathers the facts of all ranks and shows the findings. Rank 0 prints
for all."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from unisono.cluster import resolve
from unisono.cluster.launchers import local
from unisono.cluster.topology import Overrides, Topology
from unisono.doctor.all_ranks import JobExamination
from unisono.doctor.checks import examine
from unisono.doctor.facts import Job
from unisono.doctor.finding import FAIL, Finding, finding_from_error
from unisono.doctor.gather import gather
from unisono.doctor.local_ranks import Answer, local_ranks
from unisono.doctor.report import Verdicts
from unisono.doctor.report_output import ReportOutput
from unisono.errors import UsageError

RANKS_ALONE = 2
"""Number of local ranks that one process starts to measure between them."""
LOOPBACK = "127.0.0.1"
INTERRUPTED_CODE = 130


def main(args: argparse.Namespace) -> int:
    """Collective over the processes of the job, blocking for seconds: prints the report; returns 1 if something fails, else 0.

    `args` has `n` (how many ranks should be there, or None), `json` and `no_bandwidth`.
    """
    if args.n is not None and args.n < 1:
        raise UsageError(f"-n, the number of processes that the job should have, must be at least 1; received {args.n}")
    env = resolve.environment()
    output = ReportOutput(env, args.json)
    examination = _Examination(args.n, not args.no_bandwidth, env, resolve.verdicts(env), output)
    try:
        return examination.examine()
    finally:
        output.progress("")


@dataclass(frozen=True)
class _Examination:
    """One process's part in the examination of its job."""

    num_expected: int | None
    bandwidth: bool
    env: Mapping[str, str]
    verdicts: Verdicts
    output: ReportOutput

    def examine(self) -> int:
        """Finds out which job this process belongs to and examines it, or this process alone; returns the exit code."""
        try:
            at = resolve.current_topology()
        except UsageError as error:
            return self._report_bad_environment(error)
        self.output.is_printing = at.global_rank == 0
        self.output.show_verdicts(self.verdicts)
        job = Job((), at.launcher, at.world_size, at.note, self.num_expected)
        return self._examine_in_job(at, job) if at.world_size > 1 else self._examine_alone(at, job)

    def _report_bad_environment(self, error: UsageError) -> int:
        """Reports variables that make no sense. Every process does so by itself, as none knows its rank."""
        self.output.show_verdicts(self.verdicts)
        self.output.progress("gathering facts")
        own = gather(local.resolve({}, Overrides()), self.env, LOOPBACK)
        problem = finding_from_error(
            FAIL, "ranks", str(error), "unset the variables that another launcher left, or start with the right launcher"
        )
        return self._report(Job((own,), launcher="", size=1), [problem])

    def _examine_alone(self, at: Topology, job: Job) -> int:
        """Examines a single process, and the links between local ranks that it starts."""
        if self.num_expected is not None and self.num_expected > 1 and at.launcher == "local" and not at.note:
            self.output.progress(f"starting {self.num_expected} local ranks")
            with local_ranks(self.num_expected, self.bandwidth) as started:
                answer = started.answer()
            return self._report(
                _add_measurements(replace(job, ranks=answer.ranks, started=self.num_expected), answer), answer.problems
            )
        self.output.progress("gathering facts")
        if not self.bandwidth or self.num_expected == 1:
            return self._report(replace(job, ranks=(gather(at, self.env, LOOPBACK),)), [])
        # An engine for one process (single, or nccl with its one GPU) was not chosen for these ranks.
        with local_ranks(RANKS_ALONE, self.bandwidth, engine="auto") as started:
            own = gather(at, self.env, LOOPBACK)
            self.output.progress(f"measuring between {RANKS_ALONE} local ranks")
            answer = started.answer()
        return self._report(_add_measurements(replace(job, ranks=(own,), started=RANKS_ALONE), answer), answer.problems)

    def _examine_in_job(self, at: Topology, job: Job) -> int:
        """Examines the job together with its other ranks. Ranks other than 0 print only problems that rank 0 cannot see."""
        part = JobExamination(at, self.env, self.bandwidth, self.output.progress)
        try:
            part.run()
        except KeyboardInterrupt:
            if part.aside.busy:
                _exit_now(INTERRUPTED_CODE)
            raise
        if at.global_rank == 0:
            found = replace(job, ranks=tuple(part.ranks), origin=part.origin, measurements=tuple(part.measurements))
            code = self._report(found, part.problems)
        else:
            code = self.output.print_problems(part.problems if part.must_report_itself else [])
        if part.aside.busy:
            _exit_now(code)
        return code

    def _report(self, job: Job, problems: Sequence[Finding]) -> int:
        """Prints the problems and the findings of all checks; returns 1 if one is a failure, else 0."""
        findings = [*problems, *examine(job)]
        self.output.show(self.verdicts, job, findings)
        return int(any(finding.level == FAIL for finding in findings))


def _add_measurements(job: Job, answer: Answer) -> Job:
    """Returns the job with the engine and the measurements of local ranks."""
    return replace(job, origin=answer.origin, measurements=answer.measurements)


def _exit_now(code: int) -> NoReturn:
    """Exits at once: a library that hangs would also hang at a proper exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
