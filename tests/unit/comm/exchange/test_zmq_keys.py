"""The key files of a run: for the eyes of its user alone, whole, and one server at a time."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from unisono.comm.exchange.zmq_keys import ConnectionInfo, Pair, ServerKeyFile, read_connection_file, write_connection_file
from unisono.errors import UsageError

CONNECTION = ConnectionInfo("127.0.0.1:4711", "s" * 40, "c" * 40, "k" * 40)
NUMBERS = count()


def new_pair() -> Pair:
    return f"p{next(NUMBERS):039}", f"q{next(NUMBERS):039}"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """With which files are for everybody unless their maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_connection_file_is_read_as_written_and_only_by_its_owner(tmp_path: Path, open_umask: None) -> None:
    path = tmp_path / "exchange.json"
    for connection_file in (CONNECTION, CONNECTION._replace(address="node-7:1")):
        write_connection_file(path, connection_file)
        assert read_connection_file(path) == connection_file
    assert mode(path) == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_a_connection_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "exchange.json"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_connection_file(path, CONNECTION)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("others", [0o604, 0o640, 0o620, 0o606])
def test_a_connection_file_for_others_is_refused(tmp_path: Path, others: int) -> None:
    path = tmp_path / "exchange.json"
    write_connection_file(path, CONNECTION)
    path.chmod(others)
    with pytest.raises(UsageError, match=rf"exchange.json .* mode {others:04o}.*chmod 600"):
        read_connection_file(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\x00", "not JSON"),
        (b"[1, 2]", "must hold address"),
        (json.dumps(CONNECTION._asdict() | {"more": "x"}).encode(), "must hold address"),
        (json.dumps(CONNECTION._asdict() | {"address": 7}).encode(), "must hold address"),
        (json.dumps(CONNECTION._asdict() | {"client_secret": "short"}).encode(), "client_secret must be a key"),
        (json.dumps(CONNECTION._asdict() | {"address": "tcp://x:1"}).encode(), "not host:port"),
        (json.dumps(CONNECTION._asdict())[:-9].encode(), "not JSON"),
    ],
)
def test_a_damaged_door_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "exchange.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=f"exchange.json is damaged .*{why}.*start the run again"):
        read_connection_file(path)


def test_a_server_finds_its_keys_again(tmp_path: Path, open_umask: None) -> None:
    path = tmp_path / "exchange.json"
    first = ServerKeyFile(path, new_pair)
    first.close()
    first.close()
    second = ServerKeyFile(path, new_pair)
    second.close()
    assert second.keys == first.keys
    assert len({*first.keys}) == 4
    assert mode(tmp_path / "exchange-server.json") == 0o600


def test_one_server_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "exchange.json"
    first = ServerKeyFile(path, new_pair)
    with pytest.raises(UsageError, match=r"another server is using the keys in .*exchange-server\.json"):
        ServerKeyFile(path, new_pair)
    first.close()
    ServerKeyFile(path, new_pair).close()


def test_keys_of_the_server_for_others_or_damaged_are_refused(tmp_path: Path) -> None:
    path, own = tmp_path / "exchange.json", tmp_path / "exchange-server.json"
    ServerKeyFile(path, new_pair).close()
    own.chmod(0o644)
    with pytest.raises(UsageError, match="mode 0644"):
        ServerKeyFile(path, new_pair)
    own.chmod(0o600)
    own.write_bytes(own.read_bytes()[:50])
    with pytest.raises(UsageError, match="damaged"):
        ServerKeyFile(path, new_pair)
