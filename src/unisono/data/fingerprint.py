"""Fingerprints of data: small, cheap for large sources, and equal for equal data. They show whether workers hold the same data, and
whether data are still those of a training.

Labels, and the order of the samples, count exactly. Of the values of all samples, weighted sums over some samples count, within
rounding: other CPUs round otherwise where data are computed, e.g. scaled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.data.checks import PART_NAMES, origin
from unisono.data.random_streams import seeded_generators
from unisono.data.source import Indices, Mapped, Source, Subset
from unisono.data.tree import leaves

MOST_ROWS, MOST_ROWS_IN_MEMORY = 32, 256
MOST_BYTES = 1 << 26
"""Of one part that are read for its fingerprint, but at least two samples are."""
MOST_VALUES = 4096
"""Of one array of one sample."""
NUM_SUMS = 8
TOLERANCE = 1e-5
"""Relative difference of two sums that counts as rounding; one other sample among those of a sum makes a larger one."""
STRIDE = np.uint64(0x9E3779B97F4A7C15)
REMEDY = (
    "make them the same everywhere: give every generator a seed (np.random.default_rng(0)), sort what glob, listdir and set "
    "return, and leave the division among workers to Unisono"
)
PARTS_OF_A_BATCH = ("inputs", "targets", "weights")

Fingerprint = Mapping[str, Any]
"""Plain data: number of samples, hashes of description, order and labels, and sums of the values, None where they change from one
reading to the next."""


def fingerprint(part: Source, most_rows: int | None = None) -> dict[str, Any]:
    """Local, blocking for a pass over the labels and two reads of some samples: the fingerprint of samples in their order."""
    order, labels = origin(part)[1], part.targets()
    return {
        "num_samples": len(part),
        "description": _sha256(json.dumps(without_folders(part.describe()), sort_keys=True, default=str).encode()),
        "order": None if order is None else _sha256(order.astype("<i8")),
        # Numbers that were computed may be rounded otherwise elsewhere; they are among the values.
        "labels": None if labels is None or labels.dtype.kind not in "biu" else _sha256(labels),
        "values": _values(part, most_rows),
    }


def fingerprints(parts: Mapping[str, Source]) -> dict[str, Fingerprint]:
    """Local, blocking as `fingerprint`: that of each part of the data, by its name."""
    return {name: fingerprint(part) for name, part in parts.items()}


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


def values_of(parts: Mapping[str, Fingerprint]) -> dict[str, Any]:
    """Pure: the sums of the values of each part, for the record of a run: its order may change, and its hash is recorded beside."""
    return {name: one["values"] for name, one in parts.items()}


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
        if is_missing or (one is not None and other is not None and _far(one, other)):  # None cannot be compared
            found.append(_name(place))
    return list(dict.fromkeys(found))


def without_folders(value: Any) -> Any:
    """Returns a description without folders: data are the same in whichever folder they are, e.g. after staging to a local disk."""
    if isinstance(value, Mapping):
        return {str(key): without_folders(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(part) for part in value]
    if isinstance(value, PurePath) or (isinstance(value, str) and "/" in value):
        return PurePath(value).name
    return value


def sampled_rows(part: Source, most_rows: int | None = None) -> Indices:
    """Local, blocking for the read of one sample: places in the part of some samples, which do not depend on its order."""
    whole, indices = origin(part)
    numbers = np.arange(len(part), dtype=np.int64) if indices is None else indices
    if most_rows is None:
        most_rows = MOST_ROWS if runs_user_code(part) else MOST_ROWS_IN_MEMORY
    with np.errstate(over="ignore"):
        keys = numbers.view(np.uint64) * STRIDE
    num = min(most_rows, len(keys))
    chosen = np.argpartition(keys, num - 1)[:num] if num < len(keys) else np.arange(len(keys))
    chosen = chosen[np.argsort(keys[chosen], kind="stable")]
    with seeded_generators(0):
        num_bytes = sum(getattr(leaf, "nbytes", 0) for _, leaf in leaves(part.read(chosen[:1])))
    return chosen[: max(2, MOST_BYTES // max(1, num_bytes * (whole.chunk_samples or 1)))]


def runs_user_code(part: Source) -> bool:
    """Pure: whether reading may do more than copy from memory."""
    while isinstance(part, Subset):
        part = part.source
    return isinstance(part, Mapped) or not part.in_memory


def _values(part: Source, most_rows: int | None) -> dict[str, Any]:
    """Returns the sums of each array of a batch by its place; None for one that is another in a second reading, although the
    generators of the process are seeded alike."""
    rows = sampled_rows(part, most_rows)
    with seeded_generators(0):
        found = dict(_sums(part.read(rows)))
    if not runs_user_code(part):
        return found
    with seeded_generators(0):
        again = dict(_sums(part.read(rows)))
    return {place: sums if not _far(sums, again.get(place)) else None for place, sums in found.items()}


def _sums(batch: Any) -> Iterator[tuple[str, list[float]]]:
    """Yields for each array of numbers the size of the sums, and the sums: each over every eighth sample."""
    for place, leaf in leaves(batch if isinstance(batch, tuple) else (batch,)):
        values = _numbers(leaf)
        if values is None:
            continue
        weights = 1.0 + np.arange(values.shape[1]) * 0.6180339887498949 % 1.0
        weighted = np.arcsinh(values) * weights  # so that a few large numbers do not hide all others
        sums = [weighted[start::NUM_SUMS] for start in range(NUM_SUMS)]
        yield place, [max(float(np.abs(one).sum()) for one in sums), *(float(one.sum()) for one in sums)]


def _numbers(leaf: Any) -> npt.NDArray[np.float64] | None:
    """Returns an array of a batch as rows of finite numbers, of long ones every so many; None where it holds none."""
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        leaf = leaf.double() if leaf.is_floating_point() else leaf
    array = np.asarray(leaf)
    if not array.ndim or array.dtype.kind not in "biufc":
        return None
    rows = array.reshape(len(array), -1) if array.size else np.zeros((len(array), 1))
    rows = rows[:, :: -(-rows.shape[1] // MOST_VALUES)]
    if rows.dtype.kind == "c":
        rows = np.concatenate([rows.real, rows.imag], axis=1)
    return np.nan_to_num(rows.astype(np.float64), posinf=np.finfo(np.float64).max, neginf=np.finfo(np.float64).min)


def _far(one: list[float], other: list[float] | None) -> bool:
    """Whether two lists of sums differ by more than rounding."""
    return other is None or bool(np.abs(np.subtract(one, other)).max() > TOLERANCE * max(one[0], other[0]))


def _name(place: str) -> str:
    """Returns the place of an array in a batch in words: "[0].image" is "the inputs (image)"."""
    position, rest = int(place[1]), place[3:].lstrip(".")
    return f"the {PARTS_OF_A_BATCH[min(position, 2)]}" + (f" ({rest})" if rest else "")


def _sha256(data: Any) -> str:
    """Returns a hash of bytes or of the bytes of an array."""
    return hashlib.sha256(data if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8).data).hexdigest()[:16]
