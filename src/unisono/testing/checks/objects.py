"""Checks of small objects and of the barrier."""

from __future__ import annotations

import math
from pathlib import Path
from time import monotonic

from unisono.comm.base import Communicator
from unisono.testing.checks.expected import expect

LATE_S = 0.02
BOOT = Path("/proc/sys/kernel/random/boot_id")


def check_objects_are_gathered(comm: Communicator) -> None:
    """`allgather_object` returns the objects of all ranks in order: nested, long, special floats, of different sizes."""
    for obj in _plain_objects():
        answers = comm.allgather_object((comm.rank, obj))
        expect(answers == [(r, obj) for r in range(comm.size)], f"allgather_object of {str(obj)[:40]} gave {str(answers)[:200]}")
    infinities = comm.allgather_object([math.inf, -math.inf, math.nan, -0.0])
    for values in infinities:
        expect(values[0] == math.inf and values[1] == -math.inf and math.isnan(values[2]), f"floats arrive as {values}")
    sizes = comm.allgather_object(list(range(comm.rank)))
    expect([len(part) for part in sizes] == list(range(comm.size)), f"objects of different sizes arrive as {sizes}")


def check_objects_are_broadcast(comm: Communicator) -> None:
    """`broadcast_object` returns the root's object everywhere, from every root."""
    for root in range(comm.size):
        answer = comm.broadcast_object({"from": comm.rank}, root)
        expect(answer == {"from": root}, f"broadcast_object from {root} gave {answer}")


def check_gathered_objects_are_copies(comm: Communicator) -> None:
    """Changing a gathered object does not change the object that was given."""
    mine = [comm.rank]
    answers = comm.allgather_object(mine)
    answers[comm.rank].append("changed")
    expect(mine == [comm.rank], "changing a gathered object changes what was given")


def check_barrier_holds_until_all_are_there(comm: Communicator) -> None:
    """No rank leaves before the last has entered, by the machine's clock (on one machine; elsewhere it must merely return)."""
    for late in range(comm.size):
        entered = monotonic()
        while comm.rank == late and monotonic() < entered + LATE_S:
            continue
        entered = monotonic()
        comm.barrier()
        times = comm.allgather_object((_boot(), entered, monotonic()))
        if len({boot for boot, _, _ in times}) == 1:
            last_in, first_out = max(at for _, at, _ in times), min(at for _, _, at in times)
            expect(last_in <= first_out, f"a rank left the barrier {last_in - first_out:g} s before rank {late} came")
    comm.barrier(timeout_s=20.0)


def _boot() -> str:
    """Returns the id of this machine's current boot; a fixed text where there is none, as then all ranks are on one machine."""
    return BOOT.read_text() if BOOT.exists() else "one machine"


def _plain_objects() -> tuple[object, ...]:
    """Returns objects of every kind that can be sent: numbers, texts, bytes, lists, dicts, None."""
    nested = {"nested": [1, (2, "three"), {"four": None}], "empty": {}}
    return (None, True, -5, 2**100, 3.25, "Grüße 你好", b"\x00\xff", (), [], nested, "long" * 50_000)
