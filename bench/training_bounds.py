"""What training must reach, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.rounds import Estimate, Samples, estimate, judged, ratio


@dataclass(frozen=True)
class AtMostTimes:
    """Ours takes at most `factor` times as long as the best of a kind."""

    case: str
    workers: int
    kind: str
    factor: float

    def judge(self, ours: Samples, peer: Samples, name: str) -> tuple[str, str]:
        found = ratio(ours, peer)
        return f"{found} times as long as {name}, at most {self.factor:g} asked", judged(found, self.factor, at_least=False)


@dataclass(frozen=True)
class AtMostLonger:
    """A step of ours takes at most so much longer than one of the best of a kind."""

    case: str
    workers: int
    kind: str
    longer_us: float

    def judge(self, ours: Samples, peer: Samples, name: str) -> tuple[str, str]:
        found = difference(ours, peer)
        return f"{found} us a step more than {name}, at most {self.longer_us:g} asked", judged(
            found, self.longer_us, at_least=False
        )


@dataclass(frozen=True)
class Faster:
    """Ours is at least `factor` times as fast as the best of a kind."""

    case: str
    workers: int
    kind: str
    factor: float

    def judge(self, ours: Samples, peer: Samples, name: str) -> tuple[str, str]:
        found = ratio(peer, ours)
        return f"{found} times as fast as {name}, at least {self.factor:g} asked", judged(found, self.factor, at_least=True)


BOUNDS = (
    AtMostTimes("mnist_cnn", 1, "hand", 1.03),
    AtMostLonger("digits", 1, "hand", 100.0),
    Faster("mnist_cnn", 2, "ddp", 1.0),
    Faster("digits", 2, "ddp", 2.0),
    Faster("digits", 2, "lightning", 2.0),
)


def difference(above: Samples, below: Samples) -> Estimate:
    """Local: how much longer one takes than the other, compared in each round."""
    return estimate(above.by_round - below.by_round)


def verdicts(case: str, workers: int, samples: Mapping[str, Samples], kinds: Mapping[str, str], ours: str) -> list[tuple[str, str]]:
    """Local: for each bound of this block in words, whether it holds. The best of a kind has the smallest median."""
    found = []
    for bound in BOUNDS:
        if (bound.case, bound.workers) == (case, workers):
            where = f"{case}, {show_workers(workers)}"
            peers = [name for name in samples if kinds[name] == bound.kind]
            if not peers:
                found.append((f"{where}: no contender of the kind {bound.kind} took part", "not judged"))
                continue
            best = min(peers, key=lambda name: samples[name].median)
            text, verdict = bound.judge(samples[ours], samples[best], best)
            found.append((f"{where}: {text}", verdict))
    return found


def show_workers(workers: int) -> str:
    """Pure."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
