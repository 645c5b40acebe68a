"""The journal of a study survives what happens to files: several writers, cuts, flipped bytes, a full disk."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from unisono.errors import CannotWrite
from unisono.files.claims import Claims
from unisono.files.journal import Reader, Writer, decode_record, encode_record


def value(number: int) -> Mapping[str, Any]:
    return {"event": "told", "trial": number, "value": number / 7, "text": "a\n\x1eb ü" * (number % 3), "nothing": None}


def written(folder: Path, name: str, count: int) -> Path:
    writer = Writer(folder, name)
    for number in range(count):
        writer.append(value(number))
    writer.close()
    return writer.path


def trials(folder: Path, is_over: bool = True) -> list[int]:
    return [record.value["trial"] for record in Reader(folder).read(is_over)]


def test_what_was_written_is_read_once_and_in_order(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert reader.read() == []
    writers = [Writer(tmp_path, name) for name in ("b", "a")]
    for number in range(3):
        for writer in writers:
            writer.append(value(number))
    found = reader.read()
    assert [(one.writer, one.number, one.value["trial"]) for one in found] == [(w, n, n) for w in ("a", "b") for n in range(3)]
    assert found[2].value == value(2)
    assert reader.read() == []
    writers[0].append(value(3))
    assert [(one.writer, one.number) for one in reader.read()] == [("b", 3)]
    assert reader.damages == [] and reader.unfinished() == []
    for writer in writers:
        writer.close()


def test_two_writers_never_share_a_file(tmp_path: Path) -> None:
    first = Writer(tmp_path, "job")
    with pytest.raises(CannotWrite, match=r"job\.journal belongs to another writer; .* new name"):
        Writer(tmp_path, "job")
    first.close()


def test_a_record_at_which_its_writer_is_waits(tmp_path: Path) -> None:
    path = written(tmp_path, "job", 2)
    whole = encode_record(value(2))
    reader = Reader(tmp_path)
    for part in (whole[:1], whole[1:9], whole[9:-1]):
        with path.open("ab") as file:
            file.write(part)
        assert [one.value["trial"] for one in reader.read()] == ([0, 1] if part is whole[:1] or len(part) == 1 else [])
        assert reader.unfinished() == [path] and reader.damages == []
    with path.open("ab") as file:
        file.write(whole[-1:])
    assert [one.value["trial"] for one in reader.read()] == [2]
    assert reader.unfinished() == []


def test_a_byte_that_is_flipped_costs_at_most_its_record(tmp_path: Path) -> None:
    draw, count = random.Random(3), 12
    path = written(tmp_path, "job", count)
    whole = path.read_bytes()
    edges = [0]
    for number in range(count):
        edges.append(edges[-1] + len(encode_record(value(number))))
    assert edges[-1] == len(whole)
    for _ in range(1000):
        place, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        hit = next(number for number in range(count) if place < edges[number + 1])
        reader = Reader(tmp_path)
        found = reader.read(is_over=True)
        lost = set(range(count)) - {one.value["trial"] for one in found}
        assert lost <= {hit}, (place, bit)
        assert bool(reader.damages) or not lost, "what is lost is told"
        assert all(one.value == value(one.value["trial"]) for one in found)


def test_a_file_that_is_cut_loses_its_end_alone(tmp_path: Path) -> None:
    draw, count = random.Random(4), 12
    path = written(tmp_path, "job", count)
    whole = path.read_bytes()
    sizes = [len(encode_record(value(number))) for number in range(count)]
    for _ in range(1000):
        length = draw.randrange(len(whole))
        path.write_bytes(whole[:length])
        complete = next(number for number in range(count + 1) if sum(sizes[: number + 1]) > length)
        found = trials(tmp_path)
        assert found[:complete] == list(range(complete)) and len(found) <= complete + 1


def test_a_stretch_that_is_torn_out_costs_what_lay_in_it(tmp_path: Path) -> None:
    draw, count = random.Random(5), 12
    path = written(tmp_path, "job", count)
    whole = path.read_bytes()
    edges = [0]
    for number in range(count):
        edges.append(edges[-1] + len(encode_record(value(number))))
    for _ in range(300):
        start, stop = sorted(draw.sample(range(len(whole)), 2))
        path.write_bytes(whole[:start] + whole[stop:])
        touched = {number for number in range(count) if edges[number] < stop and start < edges[number + 1]}
        assert set(range(count)) - touched <= set(trials(tmp_path))


@pytest.mark.parametrize("body", [b"", b"1234", b"00000000", b"00000000 ", b"00000000 {}", b"\xff" * 30])
def test_what_is_no_record_is_seen(body: bytes) -> None:
    assert decode_record(body) is None


def test_a_full_disk_is_reported_and_later_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path, "job")
    writer.append(value(0))

    def full(handle: int, data: bytes) -> int:
        monkeypatch.undo()
        with (tmp_path / "job.journal").open("ab") as file:
            file.write(data[:11])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unisono.files.journal.os.write", full)
    with pytest.raises(CannotWrite, match="No space left on device; free some space"):
        writer.append(value(1))
    writer.append(value(2))
    writer.close()
    assert trials(tmp_path) == [0, 2]


def test_one_of_several_jobs_gets_the_trial(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims")
    with ThreadPoolExecutor(8) as threads:
        for trial in range(20):
            got = list(threads.map(lambda who, trial=trial: claims.claim(trial, 0, f"job {who}"), range(8)))
            assert got.count(True) == 1
            assert claims.owner(trial, 0) == f"job {got.index(True)}"
    assert claims.owner(99, 0) is None
    assert claims.claim(3, 1, "again"), "another attempt is another claim"
    assert claims.claim(3, 1, "again"), "who asks twice is told the same"
