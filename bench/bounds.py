"""What the shared-memory engine must reach, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.rounds import Samples, estimate, judged, ratio
from bench.sizes import show_size

Block = tuple[int, int, Mapping[str, Samples]]
"""Number of ranks, bytes, samples by contender."""


@dataclass(frozen=True)
class Faster:
    """At least `factor` times as fast as the best contender of a kind, at sizes in a range."""

    ranks: int
    kind: str
    factor: float
    from_bytes: int = 0
    to_bytes: int = 1 << 62


FASTER = (
    Faster(2, "gloo", 5.0),
    Faster(2, "mpi", 1.5, 400_000, 400_000),
    Faster(2, "mpi", 3.0, 4_000_000),
    Faster(4, "gloo", 3.0),
)
SMALL_RANKS, SMALL_BYTES, SMALL_US = 2, 4_000, 50.0


def verdicts(blocks: Sequence[Block], kinds: Mapping[str, str], ours: str) -> list[tuple[str, str]]:
    """Local: for each bound and size in words, whether it holds. The best MPI is the one with the smallest median there."""
    found = []
    for bound in FASTER:
        for num_ranks, num_bytes, samples in blocks:
            if num_ranks == bound.ranks and bound.from_bytes <= num_bytes <= bound.to_bytes:
                where = f"{num_ranks} ranks, {show_size(num_bytes)}"
                peers = [name for name in samples if kinds[name] == bound.kind]
                if not peers:
                    found.append((f"{where}: no contender of the kind {bound.kind} took part", "not judged"))
                    continue
                best = min(peers, key=lambda name: samples[name].median)
                times = ratio(samples[best], samples[ours])
                text = f"{where}: {times} times as fast as {best}, at least {bound.factor:g} asked"
                for floor in (name for name in samples if kinds[name] == "floor"):
                    text += f" (the {floor}: {ratio(samples[best], samples[floor])})"
                found.append((text, judged(times, bound.factor, at_least=True)))
    for num_ranks, num_bytes, samples in blocks:
        if (num_ranks, num_bytes) == (SMALL_RANKS, SMALL_BYTES):
            took = estimate(samples[ours].by_round)
            text = f"{num_ranks} ranks, {show_size(num_bytes)}: {took} us, at most {SMALL_US:g} asked"
            found.append((text, judged(took, SMALL_US, at_least=False)))
    return found
