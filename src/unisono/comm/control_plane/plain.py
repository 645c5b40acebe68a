"""Plain data as bytes and back: None, bool, int, float, str, bytes, list, tuple and dict, and nothing else.

What comes off a socket may come from anybody on a shared node, so no form is used that can name code to run (pickle).
Types are taken exactly: a subclass (a numpy float, a named tuple, an enum) would arrive as something else, so it is refused.
Each value is one letter and its content; lengths are eight bytes, little-endian.
"""

from __future__ import annotations

import struct
from typing import Any

from unisono.errors import CommError, UsageError

MAX_DEPTH = 100
"""Levels of nesting; a structure that contains itself would have no end."""

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_SHORT_INT_BYTES = 255

Where = tuple["Where", str, object] | None
"""The path to a value from the outside in, made into text only for a message."""


def encode(obj: Any) -> bytes:
    """Local: returns `obj` as bytes; raises `UsageError` with type and path of what is not plain data."""
    out = bytearray()
    _write_value(obj, out, None, 0)
    return bytes(out)


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Local: returns what `encode` was given; raises `CommError` if the bytes are not complete and well formed."""
    view = memoryview(data)
    try:
        value, end = _read(view, 0, 0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise CommError(f"received {len(view)} bytes that are not plain data: {error}") from error
    if end != len(view):
        raise CommError(f"received {len(view)} bytes of which only {end} are plain data")
    return value


def _write_value(obj: Any, out: bytearray, where: Where, depth: int) -> None:
    """Appends the bytes of a value, with all that it contains, to `out`; raises `UsageError` for what is not plain data."""
    kind = type(obj)
    if depth > MAX_DEPTH:
        raise UsageError(
            f"{_path_in_object(where)} is nested more than {MAX_DEPTH} levels deep and cannot be sent; does it contain itself?"
        )
    if obj is None:
        out += b"N"
    elif kind is bool:
        out += b"T" if obj else b"F"
    elif kind is int:
        _write_int(obj, out)
    elif kind is float:
        out += b"d"
        out += _FLOAT.pack(obj)
    elif kind is str:
        _write_sized(b"s", obj.encode("utf-8", "surrogatepass"), out)
    elif kind is bytes:
        _write_sized(b"b", obj, out)
    elif kind is list or kind is tuple:
        out += b"l" if kind is list else b"t"
        out += _LENGTH.pack(len(obj))
        for position, item in enumerate(obj):
            _write_value(item, out, (where, "[{!r}]", position), depth + 1)
    elif kind is dict:
        out += b"m"
        out += _LENGTH.pack(len(obj))
        for key, item in obj.items():
            _write_value(key, out, (where, " key {!r}", key), depth + 1)
            _write_value(item, out, (where, "[{!r}]", key), depth + 1)
    else:
        raise UsageError(
            f"{_path_in_object(where)} is a {_type_name(kind)}, which is not plain data; "
            "send None, bool, int, float, str, bytes, list, tuple or dict (exactly these types, e.g. float(x))"
        )


def _write_int(value: int, out: bytearray) -> None:
    """Appends the bytes of an integer of any size to `out`."""
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(content) <= _SHORT_INT_BYTES:
        out += b"i"
        out.append(len(content))
        out += content
    else:
        _write_sized(b"I", content, out)


def _write_sized(letter: bytes, content: bytes, out: bytearray) -> None:
    """Appends the letter of a type, the length and the content to `out`."""
    out += letter
    out += _LENGTH.pack(len(content))
    out += content


def _read(view: memoryview, at: int, depth: int) -> tuple[Any, int]:
    """Returns the value that begins at `at`, and the position of the next one."""
    if depth > MAX_DEPTH:
        raise CommError(f"received plain data nested more than {MAX_DEPTH} levels deep")
    letter = chr(view[at])
    at += 1
    match letter:
        case "N":
            return None, at
        case "T":
            return True, at
        case "F":
            return False, at
        case "i":
            content, at = _slice(view, at + 1, view[at])
            return int.from_bytes(content, "little", signed=True), at
        case "d":
            return _FLOAT.unpack_from(view, at)[0], at + 8
    (length,) = _LENGTH.unpack_from(view, at)
    at += 8
    match letter:
        case "I":
            content, at = _slice(view, at, length)
            return int.from_bytes(content, "little", signed=True), at
        case "s":
            content, at = _slice(view, at, length)
            return str(content, "utf-8", "surrogatepass"), at
        case "b":
            content, at = _slice(view, at, length)
            return bytes(content), at
        case "l" | "t":
            items = []
            for _ in range(length):  # a false length ends at the end of the bytes, so it costs nothing
                item, at = _read(view, at, depth + 1)
                items.append(item)
            return (items if letter == "l" else tuple(items)), at
        case "m":
            mapping = {}
            for _ in range(length):
                key, at = _read(view, at, depth + 1)
                mapping[key], at = _read(view, at, depth + 1)
            return mapping, at
    raise CommError(f"received bytes that are not plain data: unknown type code {letter!r} at byte {at - 9}")


def _slice(view: memoryview, at: int, length: int) -> tuple[memoryview, int]:
    """Returns the next `length` bytes from `at` and the position behind them; raises `IndexError` if there are fewer."""
    if length > len(view) - at:
        raise IndexError(f"{length} bytes were announced, but {len(view) - at} arrived")
    return view[at : at + length], at + length


def _path_in_object(where: Where) -> str:
    """Returns the path to a value inside the object, for messages: 'obj[2]['name']'."""
    steps = []
    while where is not None:
        where, form, step = where
        try:
            steps.append(form.format(step))
        except ValueError:  # an integer with more digits than Python wants to show
            steps.append("[...]")
    return "obj" + "".join(reversed(steps))


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
