"""Options of sbatch that are handed on: by their long names, less those that would break a chain of jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.errors import UsageError

LONG_NAMES: Mapping[str, str] = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "S": "core-spec",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "i": "input",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
"""Short name -> long name."""
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("time", "nodes", "ntasks-per-node"), "it is an option of unisono submit; give it before --"),
    "ntasks": "use -n of unisono submit, before --",
    "array": "a run directory holds one training; submit each training separately",
    "chdir": "change to that directory, and submit there",
    "wrap": "unisono submit writes the batch file itself; leave --wrap out",
    "test-only": "use --dry-run",
}
"""Options that cannot be handed on -> the remedy."""
FIRST_JOB_ONLY = frozenset({"begin", "deadline", "dependency", "hold", "wait"})
"""Options for the first job only: its successors must not wait once more."""


def parse(arguments: Sequence[str]) -> dict[str, str | None]:
    """Pure: returns long name -> value (None without one) of options as typed: --gres=gpu:4, --mail-type END, --exclusive, -C
    a100."""
    found: dict[str, str | None] = {}
    name = ""
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else None
        elif word.startswith("-") and len(word) > 1:
            if word[1] not in LONG_NAMES:
                raise UsageError(f"unisono submit does not know the short option {word!r} of sbatch (after --); use its long form")
            name = LONG_NAMES[word[1]]
            found[name] = word[2:] or None
        elif name and found[name] is None:
            found[name] = word
        else:
            raise UsageError(f"{word!r} is not an option of sbatch (after --); give the options of unisono submit before --")
    for name in found:
        if name in REFUSED:
            raise UsageError(f"--{name} cannot be passed to sbatch (after --): {REFUSED[name]}")
    return found
