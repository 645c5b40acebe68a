"""Compares the fingerprints of data, which are plain values: what differs, in words. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PART_NAMES: Mapping[str, str] = {"train": "training", "validation": "validation", "test": "test"}
"""A part of the data -> its name in messages."""
TOLERANCE = 1e-5
"""Relative difference of two sums that counts as rounding; one other sample among those of a sum makes a larger one."""
REMEDY = (
    "make them the same everywhere: give every generator a seed (np.random.default_rng(0)), sort what glob, listdir and set "
    "return, and leave the division among workers to Unisono"
)
RECORDED = ("order", "source", "is_stored", "target_shape", "has_weights")
"""The entries of a fingerprint that the summary of a run keeps."""
PARTS_OF_A_BATCH = ("inputs", "targets", "weights")


Fingerprint = Mapping[str, Any]
"""Plain data: number of samples, hashes of description, order and labels, and sums of the values, None where they change from one
reading to the next; sums of the values of the source, and whether it holds what is stored; the form of the targets."""


def describe_other_data(there: Mapping[str, Fingerprint], here: Mapping[str, Fingerprint]) -> str:
    """Pure: says which parts of the data differ, and how, e.g. "the training data (labels)"; empty for the same data."""
    found = []
    for name in {**there, **here}:
        words = f"the {PART_NAMES[name]} data" if name in PART_NAMES else name
        if name not in there or name not in here:
            found.append(f"{words} (there are none on one side)")
        elif differences := describe_differences(there[name], here[name]):
            found.append(f"{words} ({', '.join(differences)})")
    return " and ".join(found)


def describe_differences(there: Fingerprint, here: Fingerprint) -> list[str]:
    """Pure: names what differs between the fingerprints of two parts, e.g. ["labels", "inputs"]; empty for the same data."""
    if there["num_samples"] != here["num_samples"]:
        return [f"number of samples: {here['num_samples']}, not {there['num_samples']}"]
    names = {"description": "names, sizes or types", "order": "order of the samples", "labels": "labels"}
    found = [words for name, words in names.items() if there[name] != here[name]]
    return found + [f"values of {words}" for words in differing_values(there["values"], here["values"])]


def describe_unrepeatable(parts: Mapping[str, Fingerprint]) -> list[str]:
    """Pure: a sentence for each part with values that change from one reading of a sample to the next."""
    return [
        f"two readings of the same sample give other values ({', '.join(changing)} of the {PART_NAMES[name]} data), so the same "
        "command gives other results, and a resume is not exact: draw from np.random, random or torch, which are seeded for each "
        "sample, and not from a generator of the data's own (np.random.default_rng()), or use augment of the task"
        for name, part in parts.items()
        if (changing := list(dict.fromkeys(_name(place) for place, sums in part["values"].items() if sums is None)))
    ]


def values_of(parts: Mapping[str, Fingerprint]) -> dict[str, Any]:
    """Pure: the sums of the values of each part, for the record of a run: its order may change, and its hash is recorded beside."""
    return {name: one["values"] for name, one in parts.items()}


def samples_record(parts: Mapping[str, Fingerprint]) -> dict[str, Any]:
    """Pure: for each part of the data what later tells whether two runs were measured on the same samples, for their summaries:
    sums of the values before any function changes them, and the form of the targets."""
    return {name: {entry: one[entry] for entry in RECORDED} for name, one in parts.items()}


def describe_changed_values(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Pure: names the arrays whose values are no longer those of a record, e.g. ["the inputs of the test data"]. Parts that only
    one of them has are not compared."""
    return [
        f"{words} of the {PART_NAMES[name]} data"
        for name, values in recorded.items()
        if name in now
        for words in differing_values(values, now[name])
    ]


def differing_values(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Pure: names the arrays of a batch whose sums differ by more than rounding, e.g. ["the inputs"]."""
    found = []
    for place in {**there, **here}:
        one, other = there.get(place), here.get(place)
        is_missing = place not in there or place not in here
        if is_missing or (one is not None and other is not None and is_far(one, other)):  # None cannot be compared
            found.append(_name(place))
    return list(dict.fromkeys(found))


def is_far(one: Sequence[float], other: Sequence[float] | None) -> bool:
    """Pure: whether two lists of sums differ by more than rounding; the first of each is the size of the others."""
    if other is None:
        return True
    return max(abs(mine - theirs) for mine, theirs in zip(one, other, strict=True)) > TOLERANCE * max(one[0], other[0])


def _name(place: str) -> str:
    """Returns the place of an array in a batch in words: "[0].image" is "the inputs (image)"."""
    position, rest = int(place[1]), place[3:].lstrip(".")
    return f"the {PARTS_OF_A_BATCH[min(position, 2)]}" + (f" ({rest})" if rest else "")
