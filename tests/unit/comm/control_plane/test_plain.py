"""Plain data survives the way there and back exactly; everything else is refused with its type and place."""

from __future__ import annotations

import enum
import math
import random
import struct
from collections import OrderedDict, namedtuple
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from unisono.comm.control_plane.plain import MAX_DEPTH, decode, encode
from unisono.errors import CommError, UsageError

EDGES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    127,
    128,
    -128,
    -129,
    2**63,
    -(2**63) - 1,
    2**2039 - 1,
    2**2040,
    -(2**100_000),
    0.0,
    -0.0,
    5e-324,
    math.inf,
    -math.inf,
    1e308,
    "",
    "Grüße, 世界 \0",
    "\ud800 alone",
    b"",
    bytes(range(256)),
    [],
    (),
    {},
    [[], ()],
    {None: 1, True: 2, -5: 3, 2.5: 4, "k": 5, b"k": 6, (1, (2, "x")): 7},
    ([{"a": (1, [2.0, {"b": None}])}],),
]


def same(a: Any, b: Any) -> bool:
    """Equal in type too, all the way down; order of keys counts, nan equals nan, -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return bool(a == b)


@pytest.mark.parametrize("value", EDGES, ids=lambda value: type(value).__name__)
def test_edges(value: Any) -> None:
    assert same(decode(encode(value)), value)


def test_nan_keeps_its_bits() -> None:
    (nan,) = struct.unpack("<d", bytes.fromhex("efbeaddeefbef8ff"))
    assert struct.pack("<d", decode(encode(nan))).hex() == "efbeaddeefbef8ff"


class Generator:
    """Random plain data of some depth."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def leaf(self) -> Hashable:
        draw = self.random
        match draw.randrange(6):
            case 0:
                return draw.choice([None, True, False])
            case 1:
                return draw.randrange(-(2 ** (bits := draw.choice([1, 8, 63, 64, 200, 3000]))), 2**bits)
            case 2:
                return float(struct.unpack("<d", draw.randbytes(8))[0])
            case 3:
                return "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randrange(8)))
            case 4:
                return draw.randbytes(draw.randrange(300))
        return draw.choice([-0.0, math.inf, 0, "", b""])

    def key(self, depth: int) -> Hashable:
        if depth and self.random.random() < 0.3:
            return tuple(self.key(depth - 1) for _ in range(self.random.randrange(4)))
        return self.leaf()

    def value(self, depth: int) -> Any:
        length = self.random.randrange(5)
        match self.random.randrange(4) if depth else 3:
            case 0:
                return [self.value(depth - 1) for _ in range(length)]
            case 1:
                return tuple(self.value(depth - 1) for _ in range(length))
            case 2:
                return {self.key(2): self.value(depth - 1) for _ in range(length)}
        return self.leaf()


@pytest.mark.parametrize("seed", range(10))
def test_random_data(seed: int) -> None:
    generator = Generator(seed)
    for _ in range(100):
        value = generator.value(6)
        assert same(decode(encode(value)), value)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_bytes_are_refused_or_read_as_something_but_never_worse(seed: int) -> None:
    generator = Generator(seed)
    draw = generator.random
    for _ in range(100):
        data = bytearray(encode(generator.value(4)))
        with pytest.raises(CommError):
            decode(data + b"N")
        for cut in {draw.randrange(len(data)) for _ in range(5)}:
            with pytest.raises(CommError):
                decode(data[:cut])
        data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            decode(data)
        except CommError as error:
            assert "plain data" in str(error)


def test_a_false_length_costs_no_memory() -> None:
    for letter in b"slbtmI":
        with pytest.raises(CommError):
            decode(bytes([letter]) + struct.pack("<Q", 2**63) + b"N" * 10)


class Level(enum.IntEnum):
    ONE = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        ({1, 2}, "obj", "set"),
        ([1, bytearray(b"x")], "obj[1]", "bytearray"),
        ({"loss": [1.0, np.float64(2)]}, "obj['loss'][1]", "numpy.float64"),
        ({"loss": np.float32(2)}, "obj['loss']", "numpy.float32"),
        ((np.int64(3),), "obj[0]", "numpy.int64"),
        ([[(np.zeros(2),)]], "obj[0][0][0]", "numpy.ndarray"),
        ({"a": {Level.ONE: 2}}, "obj['a'] key <Level.ONE: 1>", "Level"),
        ({"a": Level.ONE}, "obj['a']", "Level"),
        ([Point(1, 2)], "obj[0]", "Point"),
        (OrderedDict(), "obj", "collections.OrderedDict"),
        (1j, "obj", "complex"),
        (len, "obj", "builtin_function_or_method"),
        ({"x": object()}, "obj['x']", "object"),
        ({(1, frozenset()): 2}, "obj key (1, frozenset())[1]", "frozenset"),
        ({10**5000: [{1}]}, "obj[...][0]", "set"),
    ],
)
def test_refusals_name_type_and_place(value: Any, place: str, kind: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode(value)
    text = str(caught.value)
    assert text.startswith(f"{place} is a ")
    assert f"{kind}, which is not plain data; send None, bool, int" in text


def test_depth() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(UsageError, match="nested more than 100 levels deep"):
        encode([value])
    with pytest.raises(CommError, match="nested more than 100 levels deep"):
        decode((b"l" + struct.pack("<Q", 1)) * 100_000)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="does it contain itself"):
        encode(endless)
