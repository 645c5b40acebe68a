"""What a benchmark must reach, and whether it did: a bound is missed only when the whole interval lies beyond it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.rounds import Estimate, Samples, difference, ratio


@dataclass(frozen=True)
class Bound:
    """One row of the table of bounds, in words."""

    where: str
    found: str
    asked: str
    verdict: str
    note: str = ""
    """Behind what was found."""
    value: float = 0.0
    unit: str = ""
    """Of a bound on a number."""

    def __str__(self) -> str:
        return f"{self.where}: {self.found}"


def judge(
    where: str, found: Estimate | float, unit: str = "", *, at_least: float | None = None, at_most: float | None = None
) -> Bound:
    """Pure: the verdict on a number, which holds within the noise where only its interval reaches what is asked."""
    value, low, high = (found.value, found.low, found.high) if isinstance(found, Estimate) else (found, found, found)
    if at_least is not None:
        holds, nearly, asked = value >= at_least, high >= at_least, f"at least {at_least:g}"
    else:
        assert at_most is not None
        holds, nearly, asked = value <= at_most, low <= at_most, f"at most {at_most:g}"
    verdict = "holds" if holds else "holds within the noise" if nearly else "MISSED"
    return Bound(where, f"{found:.2f} {unit}".strip(), asked, verdict, value=value, unit=unit)


@dataclass(frozen=True)
class Requirement:
    """What ours must reach against the best of a kind of contenders, the one with the smallest median in the same block."""

    kind: str
    times_as_fast: float | None = None
    """At least."""
    times_as_long: float | None = None
    """At most."""
    longer_us: float | None = None
    """At most."""

    def judge(self, where: str, samples: Mapping[str, Samples], kinds: Mapping[str, str], ours: str) -> Bound:
        """Pure: the verdict on one block."""
        peers = [name for name in samples if kinds.get(name) == self.kind]
        if not peers:
            return Bound(where, f"no contender of the kind {self.kind} took part", "-", "not judged")
        best = min(peers, key=lambda name: samples[name].median)
        mine, its = samples[ours], samples[best]
        if self.times_as_fast is not None:
            return judge(where, ratio(its, mine), f"times as fast as {best}", at_least=self.times_as_fast)
        if self.times_as_long is not None:
            return judge(where, ratio(mine, its), f"times as long as {best}", at_most=self.times_as_long)
        return judge(where, difference(mine, its), f"us more than {best}", at_most=self.longer_us)


def told(bounds: Sequence[Bound]) -> str:
    """Pure: what was found, as a part of a sentence; of three and more on the same thing the least and the largest."""
    units = Counter(bound.unit for bound in bounds if bound.unit)
    parts = []
    for bound in bounds:
        values = [one.value for one in bounds if one.unit == bound.unit]
        many = f"{min(values):.2f} to {max(values):.2f} {bound.unit}, in {len(values)} cases"
        parts.append(many if units[bound.unit] > 2 else str(bound))
    return "; ".join(dict.fromkeys(parts))


def summary(bounds: Sequence[Bound]) -> str:
    """Pure: how many of the bounds hold, as a sentence; nothing where there are none."""
    if not bounds:
        return ""
    holding = [bound for bound in bounds if bound.verdict.startswith("holds")]
    noisy = sum(bound.verdict != "holds" for bound in holding)
    return f"{len(holding)} of {len(bounds)} bounds hold{f', {noisy} of them within the noise' if noisy else ''}."
