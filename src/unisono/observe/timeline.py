"""Writes a trace of what every rank did when, on one clock, for Perfetto (ui.perfetto.dev) and Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from unisono.comm.base import Communicator
from unisono.events import Spans
from unisono.files.atomic import explain_os_errors

KINDS = ("compute", "communication", "data", "save")
"""The order of the rows of a rank; other kinds come below."""
NUM_ROUNDS = 32
_ASK, _ROWS = 7001, 7002
"""Tags of the messages."""


@dataclass(frozen=True)
class RankSpans:
    """The spans of one rank, and the offset of its clock from that of rank 0."""

    rank: int
    found: Sequence[tuple[str, str, int, int]]
    offset_ns: int = 0
    """Offset that converts its times to the clock of rank 0."""
    error_ns: int = 0
    """The offset is right to this, at the time when it was measured."""


def gather_spans(comm: Communicator, spans: Spans) -> list[RankSpans] | None:
    """Collective, blocking: gathers the spans of all ranks on rank 0, by rank; None on the others.

    Offsets are measured now, by the quickest of a few round trips with each rank: they are right to half of that round trip, 10 to
    200 microseconds by engine, network and load; see `error_ns`. A rank whose clock may be that of rank 0 by this measure (it
    is on the same host) is taken to have the same. What clocks of different hosts drift apart during a run, some microseconds a
    second where nothing disciplines them, is not corrected: the end of a run is the exact place.
    """
    words = sorted({word for kind, name, _, _ in spans.found for word in (kind, name)})
    number_of = {word: number for number, word in enumerate(words)}
    rows = [part for kind, name, begin, end in spans.found for part in (number_of[kind], number_of[name], begin, end)]
    all_words = comm.allgather_object((words, len(spans.found)))
    if comm.rank:
        _answer(comm)
        if rows:
            comm.send(torch.tensor(rows, dtype=torch.int64, device=comm.device), 0, _ROWS)
        return None
    gathered = [RankSpans(0, tuple(spans.found))]
    for rank in range(1, comm.size):
        offset_ns, error_ns = _measure(comm, rank)
        rank_words, num_spans = all_words[rank]
        received = torch.empty(4 * num_spans, dtype=torch.int64, device=comm.device)
        if num_spans:
            comm.recv(received, rank, _ROWS)
        found = [(rank_words[kind], rank_words[name], begin, end) for kind, name, begin, end in received.view(-1, 4).tolist()]
        gathered.append(RankSpans(rank, found, offset_ns, error_ns))
    return gathered


def write_timeline(path: Path, ranks: Sequence[RankSpans]) -> None:
    """Local, blocking: writes the trace as a JSON object; time 0 is the begin of the first span of all ranks."""
    origin_ns = min((begin + one.offset_ns for one in ranks for _, _, begin, _ in one.found), default=0)
    with explain_os_errors(path), path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_events(ranks, origin_ns)):
            file.write(",\n" * (number > 0) + json.dumps(event))
        file.write("\n]}\n")


def _events(ranks: Sequence[RankSpans], origin_ns: int) -> Iterator[dict[str, Any]]:
    """Yields the events of the trace: names and order of ranks and kinds, then every span."""
    others = sorted({kind for one in ranks for kind, _, _, _ in one.found} - set(KINDS))
    tids = {kind: tid for tid, kind in enumerate((*KINDS, *others))}
    for one in ranks:
        accuracy = f" (clock known to {one.error_ns / 1000:.0f} us)" if one.offset_ns else ""
        yield _metadata("process_name", one.rank, name=f"rank {one.rank}{accuracy}")
        yield _metadata("process_sort_index", one.rank, sort_index=one.rank)
        for kind in sorted({kind for kind, _, _, _ in one.found}, key=tids.__getitem__):
            yield {**_metadata("thread_name", one.rank, name=kind), "tid": tids[kind]}
            yield {**_metadata("thread_sort_index", one.rank, sort_index=tids[kind]), "tid": tids[kind]}
        for kind, name, begin, end in one.found:
            yield {
                "ph": "X",
                "name": name,
                "cat": kind,
                "pid": one.rank,
                "tid": tids[kind],
                "ts": (begin + one.offset_ns - origin_ns) / 1000,  # microseconds, as the format has it
                "dur": (end - begin) / 1000,
            }


def _metadata(what: str, pid: int, **args: str | int) -> dict[str, Any]:
    """Returns an event that names or orders a rank or one of its rows."""
    return {"ph": "M", "name": what, "pid": pid, "args": args}


def _measure(comm: Communicator, rank: int) -> tuple[int, int]:
    """On rank 0: measures the offset of a rank's clock and its error, both in nanoseconds."""
    message = torch.zeros(1, dtype=torch.int64, device=comm.device)
    rounds: list[tuple[int, int]] = []
    for _ in range(NUM_ROUNDS):
        asked = perf_counter_ns()
        comm.send(message, rank, _ASK)
        comm.recv(message, rank, _ASK)
        theirs = int(message.item())  # waits for a message that is received in stream order
        answered = perf_counter_ns()
        rounds.append((answered - asked, (asked + answered) // 2 - theirs))
    round_trip, offset = min(rounds)
    error = (round_trip + 1) // 2
    return (0 if abs(offset) <= error else offset), error


def _answer(comm: Communicator) -> None:
    """On the others: answers as quickly as possible with the time."""
    message = torch.zeros(1, dtype=torch.int64, device=comm.device)
    for _ in range(NUM_ROUNDS):
        comm.recv(message, 0, _ASK)
        message.item()  # waits for a message that is received in stream order
        message.fill_(perf_counter_ns())
        comm.send(message, 0, _ASK)
