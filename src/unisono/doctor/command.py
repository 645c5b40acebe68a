"""The verb: who am I at once, then the facts of all ranks, then the findings. Rank 0 speaks for all."""

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
from unisono.doctor.all_ranks import Together
from unisono.doctor.alone import Answer, local_ranks
from unisono.doctor.checks import examine
from unisono.doctor.facts import Job
from unisono.doctor.finding import FAIL, Finding, of_error
from unisono.doctor.gather import gather
from unisono.doctor.report import Verdicts
from unisono.doctor.voice import Voice
from unisono.errors import UsageError

RANKS_ALONE = 2
"""Local ranks that one process starts to measure between them."""
LOOPBACK = "127.0.0.1"
INTERRUPTED_CODE = 130


def main(args: argparse.Namespace) -> int:
    """Collective over the processes of the job, blocking for seconds: print the report; 1 if something fails, else 0.

    `args` has `n` (how many ranks should be there, or None), `json` and `no_bandwidth`.
    """
    if args.n is not None and args.n < 1:
        raise UsageError(f"-n must be at least 1 (processes that the job should have); received {args.n}")
    env = resolve.environment()
    voice = Voice(env, args.json)
    visit = _Visit(args.n, not args.no_bandwidth, env, resolve.verdicts(env), voice)
    try:
        return visit.examine()
    finally:
        voice.progress("")


@dataclass(frozen=True)
class _Visit:
    """One examination from the side of one process."""

    asked: int | None
    bandwidth: bool
    env: Mapping[str, str]
    verdicts: Verdicts
    voice: Voice

    def examine(self) -> int:
        try:
            at = resolve.current_topology()
        except UsageError as error:
            return self._without_a_place(error)
        self.voice.speaks = at.global_rank == 0
        self.voice.show_verdicts(self.verdicts)
        job = Job((), at.launcher, at.world_size, at.note, self.asked)
        return self._one_of_many(at, job) if at.world_size > 1 else self._alone(at, job)

    def _without_a_place(self, error: UsageError) -> int:
        """The variables make no sense: every process says so for itself, as none knows its rank."""
        self.voice.show_verdicts(self.verdicts)
        self.voice.progress("gathering facts")
        own = gather(local.resolve({}, Overrides()), self.env, LOOPBACK)
        problem = of_error(FAIL, "ranks", str(error), "unset what another launcher left over, or start with the right one")
        return self._tell(Job((own,), launcher="", size=1), [problem])

    def _alone(self, at: Topology, job: Job) -> int:
        """One process examines itself, and the links between local ranks that it starts."""
        if self.asked is not None and self.asked > 1 and at.launcher == "local" and not at.note:
            self.voice.progress(f"starting {self.asked} local ranks")
            with local_ranks(self.asked, self.bandwidth) as started:
                answer = started.answer()
            return self._tell(_with(replace(job, ranks=answer.ranks, started=self.asked), answer), answer.problems)
        self.voice.progress("gathering facts")
        if not self.bandwidth or self.asked == 1:
            return self._tell(replace(job, ranks=(gather(at, self.env, LOOPBACK),)), [])
        # An engine for one process (single, or nccl with its one GPU) was not asked for with these ranks in mind.
        with local_ranks(RANKS_ALONE, self.bandwidth, engine="auto") as started:
            own = gather(at, self.env, LOOPBACK)
            self.voice.progress(f"measuring between {RANKS_ALONE} local ranks")
            answer = started.answer()
        return self._tell(_with(replace(job, ranks=(own,), started=RANKS_ALONE), answer), answer.problems)

    def _one_of_many(self, at: Topology, job: Job) -> int:
        """The others are silent, unless they know what rank 0 cannot."""
        part = Together(at, self.env, self.bandwidth, self.voice.progress)
        try:
            part.run()
        except KeyboardInterrupt:
            if part.aside.busy:
                _leave(INTERRUPTED_CODE)
            raise
        if at.global_rank == 0:
            found = replace(job, ranks=tuple(part.ranks), origin=part.origin, measurements=tuple(part.measurements))
            code = self._tell(found, part.problems)
        else:
            code = self.voice.complain(part.problems if part.only_we_know else [])
        if part.aside.busy:
            _leave(code)
        return code

    def _tell(self, job: Job, problems: Sequence[Finding]) -> int:
        findings = [*problems, *examine(job)]
        self.voice.show(self.verdicts, job, findings)
        return int(any(finding.level == FAIL for finding in findings))


def _with(job: Job, answer: Answer) -> Job:
    return replace(job, origin=answer.origin, measurements=answer.measurements)


def _leave(code: int) -> NoReturn:
    """A library that hangs would also hang at a proper exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
