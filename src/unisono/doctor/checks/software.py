"""Checks whether everything is installed, in the same version on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from unisono.doctor.facts import Facts, Job, describe_ranks
from unisono.doctor.finding import FAIL, OK, WARN, Finding

OLDEST_TORCH = (2, 9)
PARTS: tuple[tuple[str, str, Callable[[Facts], str]], ...] = (
    ("unisono", FAIL, lambda facts: facts.unisono),
    ("torch", FAIL, lambda facts: facts.torch.version),
    ("Python", WARN, lambda facts: facts.python),
)
"""Name, how bad it is if ranks differ, where it stands."""


def check(job: Job) -> Iterator[Finding]:
    """Yields findings on an unusable or old PyTorch and on versions that differ between ranks; an ok if there are none."""
    good = True
    for error in dict.fromkeys(facts.torch.error for facts in job.ranks if facts.torch.error):
        good = False
        whose = [facts for facts in job.ranks if facts.torch.error == error]
        where = f"PyTorch cannot be used by {describe_ranks([facts.rank for facts in whose])} ({whose[0].executable}): {error}"
        yield Finding(
            FAIL,
            "software",
            where,
            "pip install torch (pytorch.org has the command for your CUDA, or for CPUs), or load the site's module",
        )
    for name, level, value in PARTS:
        values = dict.fromkeys(value(facts) for facts in job.ranks if value(facts))
        if len(values) > 1:
            good = False
            shown = "; ".join(
                f"{one} on {describe_ranks([facts.rank for facts in job.ranks if value(facts) == one])}" for one in values
            )
            yield Finding(
                level, "software", f"ranks have different versions of {name}: {shown}", "use the same environment on all nodes"
            )
    for version in dict.fromkeys(facts.torch.version for facts in job.ranks):
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers and (int(numbers.group(1)), int(numbers.group(2))) < OLDEST_TORCH:
            good = False
            oldest = ".".join(map(str, OLDEST_TORCH))
            yield Finding(WARN, "software", f"torch {version} is older than {oldest}", f"pip install 'torch>={oldest}'")
    if good and job.ranks:
        first = job.ranks[0]
        build = f"for CUDA {first.torch.cuda}" if first.torch.cuda else "for CPUs"
        yield Finding(OK, "software", f"unisono {first.unisono}, torch {first.torch.version} {build}, Python {first.python}")
