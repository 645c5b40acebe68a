"""What `unisono doctor` prints."""

from __future__ import annotations

import argparse
import json

import pytest

from unisono.cluster.resolve import verdicts
from unisono.cluster.topology import NotThisLauncher
from unisono.doctor import main
from unisono.doctor.facts import Facts, Job, Measurement
from unisono.doctor.finding import FAIL, OK, WARN, Finding
from unisono.doctor.report import Page, as_json, deciding_launcher
from unisono.errors import UsageError

OPEN_MPI = {
    f"OMPI_COMM_WORLD_{name}": value for name, value in [("RANK", "1"), ("SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "4")]
}
NAMED = {**OPEN_MPI, "PMIX_NAMESPACE": "job-1"}

JOB = Job(tuple(Facts(r, 4, "slurm", f"node {r // 2}", f"n{r // 2}") for r in range(4)), "slurm", 4)
FINDINGS = (
    Finding(OK, "ranks", "4 processes"),
    Finding(OK, "threads", "as many as CPUs", node="node 0"),
    Finding(WARN, "memory", "little", "ask for more", node="node 0"),
    Finding(OK, "threads", "as many as CPUs", node="node 1"),
    Finding(FAIL, "bandwidth", "nothing comes through", "open the firewall"),
)


def test_every_verdict_is_shown_with_its_reason_and_the_one_that_counts_is_marked() -> None:
    lines = list(Page(colour=False).verdicts(verdicts(NAMED)))
    assert [line for line in lines if line.startswith("  *")] == [lines[3]]
    assert lines[3].startswith("  * openmpi    yes    rank 1 of 4, local rank 1 of 4 on node 0 of 1; ranks meet at 127.0.0.1")
    assert lines[5].strip().startswith("slurm      no     SLURM_STEP_ID is not set")
    assert lines[7].strip().startswith("local      yes")


def test_variables_that_make_no_sense_leave_nothing_that_counts() -> None:
    found = verdicts({"OMPI_COMM_WORLD_RANK": "1"})
    assert deciding_launcher(found) is None
    assert any("openmpi    error  the variables of Open MPI are incomplete" in line for line in Page(False).verdicts(found))
    assert deciding_launcher([("a", NotThisLauncher("no"))]) is None


def test_an_error_behind_the_answer_does_not_matter() -> None:
    assert deciding_launcher(verdicts({**NAMED, "TF_CONFIG": "{"})) == "openmpi"


def test_findings_are_grouped_by_node_with_the_remedy_below() -> None:
    assert list(Page(colour=False).findings(JOB, FINDINGS)) == [
        "",
        "the job",
        "  ok    ranks      4 processes",
        "",
        "node 0: host n0, ranks 0-1",
        "  ok    threads    as many as CPUs",
        "  warn  memory     little",
        "        -> ask for more",
        "",
        "node 1: host n1, ranks 2-3",
        "  ok    threads    as many as CPUs",
        "",
        "between ranks",
        "  FAIL  bandwidth  nothing comes through",
        "        -> open the firewall",
        "",
        "1 failure, 1 warning",
    ]


def test_nodes_that_are_alike_are_shown_once() -> None:
    alike = [finding for finding in FINDINGS if finding.check == "threads"]
    lines = list(Page(colour=False).findings(JOB, alike))
    assert lines[1:3] == ["node 0 and 1 other with the same findings: host n0, n1, ranks 0-3", "  ok    threads    as many as CPUs"]
    assert lines[-1] == "no problems found"


def test_colours_only_where_they_are_asked_for() -> None:
    assert any("\x1b[31mFAIL\x1b[0m" in line for line in Page(colour=True).findings(JOB, FINDINGS))
    assert not any("\x1b" in line for line in Page(colour=False).findings(JOB, FINDINGS))


@pytest.mark.parametrize(("findings", "ok"), [(FINDINGS, False), (FINDINGS[:4], True)])
def test_json_holds_everything(findings: tuple[Finding, ...], ok: bool) -> None:
    job = Job(JOB.ranks, "slurm", 4, num_expected=4, measurements=(Measurement("gloo", (0, 1), True, 1.5, 20.0),))
    whole = json.loads(as_json(verdicts(NAMED), job, findings))
    assert whole["ok"] is ok
    assert (whole["launcher"], whole["size"], whole["asked"]) == ("slurm", 4, 4)
    assert [verdict["resolver"] for verdict in whole["verdicts"] if verdict["counts"]] == ["openmpi"]
    assert len(whole["verdicts"]) == 7 and all(verdict["reason"] for verdict in whole["verdicts"])
    assert [Facts.from_plain(facts) for facts in whole["ranks"]] == list(JOB.ranks)
    assert [Finding(**finding) for finding in whole["findings"]] == list(findings)
    assert whole["measurements"][0]["gb_per_s"] == 1.5


@pytest.mark.parametrize("number", [0, -1])
def test_fewer_than_one_rank_cannot_be_asked_for(number: int) -> None:
    with pytest.raises(UsageError, match=f"must be at least 1; received {number}"):
        main(argparse.Namespace(n=number, json=False, no_bandwidth=False))
