"""Checks of point-to-point messages: order, tags, any source, sizes, and many of them at once."""

from __future__ import annotations

import numpy as np
import torch

from unisono.comm.base import ANY, DTYPES, Communicator
from unisono.testing.checks.expected import contribution, expect, expect_equal, tensor_of


def check_messages_go_round(comm: Communicator) -> None:
    """Each rank sends to the next one, in many sizes, plain and mapped; values and envelope are right."""
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for numel in (0, 1, 1000, 16_385, 300_001, 2_000_000):
        for mapped in (False, True):
            send = comm.start_send(tensor_of(comm, contribution(comm.rank, numel), torch.float32, mapped), following)
            buf = tensor_of(comm, np.full(numel, 99), torch.float32, mapped)
            envelope = comm.recv(buf, preceding)
            send.wait()
            expect((envelope.source, envelope.tag) == (preceding, 0), f"envelope of a message from {preceding}: {envelope}")
            expect_equal(buf, contribution(preceding, numel), f"message of {numel} elements from {preceding}")


def check_messages_of_every_type(comm: Communicator) -> None:
    """Started sends and receives carry every dtype."""
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for dtype in DTYPES:
        for numel in (1, 1001):
            receive_into = torch.zeros(numel, dtype=dtype, device=comm.device)
            receive = comm.start_recv(receive_into, preceding, tag=3)
            send = comm.start_send(tensor_of(comm, contribution(comm.rank, numel), dtype), following, tag=3)
            receive.wait()
            send.wait()
            expect_equal(receive_into, contribution(preceding, numel), f"message of {dtype}[{numel}]")


def check_blocking_messages_between_pairs(comm: Communicator) -> None:
    """Each pair of ranks sends a message and an answer with blocking calls."""
    for first in range(comm.size):
        for second in range(first + 1, comm.size):
            for numel in (5, 200_000):
                buf = tensor_of(comm, contribution(comm.rank, numel), torch.float32)
                if comm.rank == first:
                    comm.send(buf, second, tag=1)
                    comm.recv(buf, second, tag=2)
                    expect_equal(buf, contribution(first, numel) + 1, "the answer to a message")
                elif comm.rank == second:
                    comm.recv(buf, first, tag=1)
                    buf += 1
                    comm.send(buf, first, tag=2)


def check_tags_are_taken_in_any_order(comm: Communicator) -> None:
    """A receive takes the message with its tag, though others came earlier."""
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for numel in (4, 70_000):
        tags = (0, 1, 7, 32_767)
        sends = [comm.start_send(_tagged_tensor(comm, comm.rank, tag, numel), following, tag) for tag in tags]
        for tag in reversed(tags):
            buf = torch.zeros(numel, device=comm.device)
            envelope = comm.recv(buf, preceding, tag)
            expect(envelope.tag == tag, f"envelope says tag {envelope.tag} for a message with tag {tag}")
            expect_equal(buf, _tagged_values(preceding, tag, numel), f"message with tag {tag} of {numel} elements")
        for send in sends:
            send.wait()


def check_messages_of_a_pair_keep_their_order(comm: Communicator) -> None:
    """Many short messages, some longer than others, before the first is received."""
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    lengths = [(i * 31) % 400 + (5000 if i % 25 == 0 else 0) for i in range(200)]
    sends = [
        comm.start_send(tensor_of(comm, np.full(length, i), torch.int32), following, tag=2) for i, length in enumerate(lengths)
    ]
    for i, length in enumerate(lengths):
        buf = torch.zeros(length, dtype=torch.int32, device=comm.device)
        comm.recv(buf, preceding, tag=2)
        expect_equal(buf, np.full(length, i), f"message {i} of many from {preceding}")
    for send in sends:
        send.wait()


def check_started_receives_take_messages_in_order(comm: Communicator) -> None:
    """Of 30 started receives with one tag, the first gets the first message, and so on."""
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    bufs = [torch.zeros(20, dtype=torch.int64, device=comm.device) for _ in range(30)]
    receives = [comm.start_recv(buf, preceding, tag=4) for buf in bufs]
    for i in range(len(bufs)):
        comm.send(tensor_of(comm, np.full(20, i), torch.int64), following, tag=4)
    for receive in reversed(receives):
        receive.wait()
    for i, buf in enumerate(bufs):
        expect_equal(buf, np.full(20, i), f"receive {i} of many that were started")


def check_any_source_takes_who_comes_first(comm: Communicator) -> None:
    """The receiver waits for ANY while all but one rank are silent; the next sender is chosen only afterwards."""
    if comm.rank == 0:
        for turn, speaker in enumerate([*range(1, comm.size), *reversed(range(1, comm.size))]):
            comm.send(torch.zeros(1, device=comm.device), speaker, tag=1)
            buf = torch.zeros(3, device=comm.device)
            envelope = comm.recv(buf, ANY, tag=9)
            expect((envelope.source, envelope.tag) == (speaker, 9), f"turn {turn}: expected {speaker}, came {envelope}")
            expect_equal(buf, np.full(3, speaker), f"message of {speaker}")
    else:
        for _ in range(2):
            comm.recv(torch.zeros(1, device=comm.device), 0, tag=1)
            comm.send(tensor_of(comm, np.full(3, comm.rank), torch.float32), 0, tag=9)
    comm.barrier()


def check_any_source_serves_everybody(comm: Communicator) -> None:
    """A server answers each call of each worker; the calls of one worker come in its order, and none is lost."""
    num_calls = 40
    if comm.rank == 0:
        seen = [0] * comm.size
        buf = torch.zeros(50, device=comm.device)
        for _ in range(num_calls * (comm.size - 1)):
            source = comm.recv(buf, ANY, tag=6).source
            expect_equal(buf, np.full(50, 100 * source + seen[source]), f"call {seen[source]} of worker {source}")
            seen[source] += 1
            comm.send(buf + 1, source, tag=7)
        expect(seen[1:] == [num_calls] * (comm.size - 1), f"calls served: {seen}")
    else:
        for call in range(num_calls):
            comm.send(tensor_of(comm, np.full(50, 100 * comm.rank + call), torch.float32), 0, tag=6)
            answer = torch.zeros(50, device=comm.device)
            comm.recv(answer, 0, tag=7)
            expect_equal(answer, np.full(50, 100 * comm.rank + call + 1), f"answer to call {call}")
    comm.barrier()


def check_any_source_of_large_messages(comm: Communicator) -> None:
    """Rank 0 receives large messages from ANY; the envelope names the sender, and none is lost."""
    numel = 150_000
    if comm.rank == 0:
        sources = []
        for _ in range(2 * (comm.size - 1)):
            buf = comm.empty(numel)
            sources.append(comm.recv(buf, ANY).source)
            expect_equal(buf, contribution(sources[-1], numel), f"large message of {sources[-1]}")
        expect(sorted(sources) == sorted([*range(1, comm.size)] * 2), f"large messages came from {sources}")
    else:
        for _ in range(2):
            comm.send(tensor_of(comm, contribution(comm.rank, numel), torch.float32), 0)
    comm.barrier()


def check_messages_to_oneself(comm: Communicator) -> None:
    """A rank can send to itself, also an empty or large message."""
    for numel in (0, 6, 90_000):
        send = comm.start_send(tensor_of(comm, contribution(comm.rank, numel), torch.float32), comm.rank, tag=8)
        buf = torch.zeros(numel, device=comm.device)
        envelope = comm.recv(buf, comm.rank, tag=8)
        send.wait()
        expect(envelope.source == comm.rank, f"a message to oneself came from {envelope.source}")
        expect_equal(buf, contribution(comm.rank, numel), f"message of {numel} elements to oneself")


def check_everybody_writes_to_everybody(comm: Communicator) -> None:
    """All ranks send to all at once; each receive gets the message of its source."""
    for numel in (17, 20_000):
        bufs = [torch.zeros(numel, device=comm.device) for _ in range(comm.size)]
        receives = [comm.start_recv(bufs[r], r, tag=11) for r in range(comm.size)]
        sends = [comm.start_send(_tagged_tensor(comm, comm.rank, r, numel), r, tag=11) for r in range(comm.size)]
        for r, receive in enumerate(receives):
            expect(receive.wait().source == r, f"a receive from {r} took another's message")
            expect_equal(bufs[r], _tagged_values(r, comm.rank, numel), f"message of {r} to {comm.rank}")
        for send in sends:
            send.wait()


def _tagged_values(rank: int, tag: int, numel: int) -> np.ndarray:
    """Returns the values of a rank's message with this tag."""
    return contribution(rank, numel) + tag % 1000


def _tagged_tensor(comm: Communicator, rank: int, tag: int, numel: int) -> torch.Tensor:
    """Returns `_tagged_values` as a tensor on the communicator's device."""
    return tensor_of(comm, _tagged_values(rank, tag, numel), torch.float32)
