"""The catalogue of data sets: what is here is checked, what is missing is fetched whole or not at all, from real servers."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from unisono.cluster.terminal import Terminal
from unisono.commands import data as data_command
from unisono.commands.data import add_arguments, get, main, size_text
from unisono.data import catalogue
from unisono.data.catalogue import CATALOGUE, CHANGED, MISSING, RIGHT, UNKNOWN, DataSet, File, default_root, find, locate
from unisono.data.download import download, unpack
from unisono.errors import UsageError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


def archive_of(folder: str, member: str, content: bytes) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"{folder}/{member}")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


class Answers(BaseHTTPRequestHandler):
    """/good gives the file, /short breaks off half way, /other gives something else, /unknown no length, the rest is not found."""

    def do_GET(self) -> None:
        what = self.path.split("/")[1]
        body = {"good": CONTENT, "short": CONTENT, "other": CONTENT[::-1], "endless": CONTENT, "huge": b""}.get(what)
        if what == "tar":
            body = archive_of("inside", "a.txt", b"hello")
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        if what != "endless":
            self.send_header("Content-Length", str(10**18 if what == "huge" else len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if what == "short" else body)
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        listening.daemon_threads = False
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def nothing_in(folder: Path) -> bool:
    return not folder.exists() or not list(folder.iterdir())


# ---- one file --------------------------------------------------------------------------------------------------------


def test_a_file_is_downloaded_whole_and_its_progress_reported(server: str, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    download([f"{server}/good/x"], tmp_path / "new" / "x", MD5, lambda done, total: told.append((done, total)))
    assert (tmp_path / "new" / "x").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x"]
    assert told[0] == (0, len(CONTENT)) and told[-1] == (len(CONTENT), len(CONTENT)) and len(told) > 2


def test_a_download_of_unknown_length_works(server: str, tmp_path: Path) -> None:
    download([f"{server}/endless/x"], tmp_path / "x", MD5)
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("short/x", f"interrupted after {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        ("other/x", f"not the published one .* expected {MD5}"),
        ("nowhere/x", "Not Found"),
    ],
)
def test_a_bad_transfer_leaves_nothing_and_says_why(path: str, why: str, server: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        download([f"{server}/{path}"], tmp_path / "x", MD5)
    assert nothing_in(tmp_path)


def test_the_next_mirror_is_tried(server: str, tmp_path: Path) -> None:
    download([f"{server}/nowhere/x", f"{server}/short/x", f"{server}/other/x", f"{server}/good/x"], tmp_path / "x", MD5)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_transfer_that_breaks_off_does_not_touch_what_is_there(server: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(UsageError, match="download was interrupted"):
        download([f"{server}/short/x"], tmp_path / "x", None)
    assert (tmp_path / "x").read_bytes() == b"old"


def test_without_internet_the_message_says_so_and_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(
        UsageError, match=f"refused.*no internet access, download the file on another one and copy it to {tmp_path}/x"
    ):
        download([f"http://127.0.0.1:{port}/x"], tmp_path / "x", MD5)
    assert nothing_in(tmp_path)


def test_an_address_that_never_answers_is_given_up(tmp_path: Path) -> None:
    why = r"x could not be downloaded .*(no answer within|timed out)"
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UsageError, match=why):
        download([f"http://127.0.0.1:{silent.getsockname()[1]}/x"], tmp_path / "x", MD5, connect_s=0.2)
    assert nothing_in(tmp_path)


def test_a_file_too_large_for_the_disk_is_refused_before_it_comes(server: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"bytes, but only .* are free"):
        download([f"{server}/huge/x"], tmp_path / "x", None)
    assert nothing_in(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_users_mistake(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot write .*choose another folder"):
        download([f"{server}/good/x"], tmp_path / "file" / "x", MD5)


def test_an_archive_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(archive_of("inside", "a.txt", b"hello" * 1000))
    unpack(archive, tmp_path / "inside")
    assert (tmp_path / "inside" / "a.txt").read_bytes() == b"hello" * 1000
    broken = tmp_path / "b.tar.gz"
    broken.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(UsageError, match="cannot be unpacked"):
        unpack(broken, tmp_path / "second")
    with pytest.raises(UsageError, match="does not hold the folder third"):
        unpack(archive, tmp_path / "third")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "b.tar.gz", "inside"]


def test_an_archive_cannot_write_outside(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(archive_of("..", "outside.txt", b"x"))
    with pytest.raises(UsageError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "deep" / "inside")
    assert not list(tmp_path.rglob("outside.txt"))


# ---- the catalogue ---------------------------------------------------------------------------------------------------


def entry_on(server: str, md5: str | None = MD5) -> DataSet:
    files = (File("x", len(CONTENT), md5, (f"{server}/good/x",)), File("a.tar.gz", None, None, (f"{server}/tar/a.tar.gz",)))
    return DataSet("mine", "numbers", "10", "MIT", "http://page", files, {"a.tar.gz": "inside"})


@pytest.fixture
def known(server: str, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """A catalogue with one entry whose server is ours."""
    entry = entry_on(server)
    monkeypatch.setattr(catalogue, "CATALOGUE", (entry,))
    monkeypatch.setattr(data_command, "CATALOGUE", (entry,))
    return entry


def test_states_of_a_file(tmp_path: Path) -> None:
    with_sum, without = File("x", md5=MD5), File("x")
    assert with_sum.state(tmp_path) == without.state(tmp_path) == MISSING
    (tmp_path / "x").write_bytes(CONTENT)
    assert (with_sum.state(tmp_path), without.state(tmp_path)) == (RIGHT, UNKNOWN)
    (tmp_path / "x").write_bytes(CONTENT[:-1])
    assert with_sum.state(tmp_path) == CHANGED


def test_get_fetches_what_is_missing_and_leaves_the_rest(known: DataSet, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_bytes(CONTENT)
    before = (tmp_path / "mine" / "x").stat().st_mtime_ns
    folder = get(known, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["a.tar.gz", "inside", "x"]
    assert (folder / "x").stat().st_mtime_ns == before
    assert locate("mine", tmp_path) == folder


def test_get_refuses_to_replace_a_changed_file(known: DataSet, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"not the published file .*remove it"):
        get(known, tmp_path)
    assert (tmp_path / "mine" / "x").read_bytes() == b"precious"


def test_locate_says_how_to_get_what_is_missing_or_wrong(known: DataSet, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"x, a.tar.gz, inside missing.*unisono data get mine --root {tmp_path}"):
        locate("mine", tmp_path)
    folder = get(known, tmp_path)
    (folder / "x").write_bytes(b"other")
    with pytest.raises(UsageError, match=r"not the published file.*remove it and run: unisono data get mine"):
        locate("mine", tmp_path)


def test_what_no_program_can_fetch_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unisono data show sat6 .*by hand"):
        locate("sat6", tmp_path)
    with pytest.raises(UsageError, match=r"cannot be fetched by a program.*kaggle"):
        get(find("sat6"), tmp_path)
    with pytest.raises(UsageError, match=r"part of the package.*digits\(\)"):
        locate("digits", tmp_path)


def test_an_unknown_name_gets_its_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown data set 'minst'; did you mean 'mnist'"):
        find("minst")


def test_the_default_folder_of_data() -> None:
    assert default_root({"UNISONO_DATA": "/scratch/data", "HOME": "/home/me"}) == Path("/scratch/data")
    assert default_root({"HOME": "/home/me"}) == Path("/home/me/.cache/unisono/data")


def test_entries_are_well_formed() -> None:
    names = [entry.name for entry in CATALOGUE]
    assert len(set(names)) == len(names) and {"digits", "mnist", "indian_pines", "hippocampus", "isic_2020"} <= set(names)
    for entry in CATALOGUE:
        assert entry.what and entry.licence and entry.page.startswith("http")
        assert set(entry.unpack) <= {file.name for file in entry.files}
        for file in entry.files:
            assert file.md5 is None or (len(file.md5) == 32 and set(file.md5) <= set("0123456789abcdef"))
            assert all(url.startswith("http") and url.endswith(file.name) for url in file.urls)


# ---- the verb --------------------------------------------------------------------------------------------------------


def run(root: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.set_defaults(root=root)
    return main(parser.parse_args(words))


def test_the_list_is_a_table_with_size_licence_and_whether_it_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "what", "samples", "size", "licence", "here"]
    rows = {line.split()[0]: line for line in lines if line}
    assert "60,000 + 10,000" in rows["mnist"] and "11.6 MB" in rows["mnist"] and rows["mnist"].endswith("no")
    assert rows["digits"].endswith("in the package") and "CC BY 4.0" in rows["digits"]
    assert max(map(len, lines)) < 180 and str(tmp_path) in rows["in"]


def test_the_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    mnist = next(entry for entry in told["data_sets"] if entry["name"] == "mnist")
    assert told["root"] == str(tmp_path) and mnist["here"] == "no" and mnist["num_bytes"] == 11594722
    assert mnist["files"][0]["md5"] == "f68b3c2dcbeaaa9fbdd348bbdeb94873" and len(mnist["files"][0]["urls"]) == 2


def test_show_says_where_it_can_be_had_and_which_checksums_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "show", "isic_2020", "mnist") == 0
    told = capsys.readouterr().out
    assert "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz" in told
    assert "md5 f68b3c2dcbeaaa9fbdd348bbdeb94873" in told and "no published checksum is known" in told and "CC BY-NC 4.0" in told


def test_get_then_check_then_a_changed_file(known: DataSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "check", "mine") == 1
    assert "missing" in capsys.readouterr().out
    assert run(tmp_path, "get", "mine") == 0
    caught = capsys.readouterr()
    assert [line.split(maxsplit=2)[2] for line in caught.out.splitlines()[1:]] == [RIGHT, UNKNOWN, "unpacked"]
    assert caught.err == ""  # no bar in a file
    (tmp_path / "mine" / "x").write_bytes(b"")
    assert run(tmp_path, "check", "--json") == 1
    assert json.loads(capsys.readouterr().out)["data_sets"]["mine"]["x"] == CHANGED


def test_the_bar_is_drawn_on_a_terminal_and_wiped(known: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(data_command, "terminal", lambda fd: Terminal(80 if fd == 2 else None))
    monkeypatch.setattr(data_command, "perf_counter", count().__next__)
    get(known, tmp_path)
    drawn = stream.getvalue()
    assert f"\rmine/x {'━' * 40} 100% of 1.0 MB\x1b[K" in drawn and drawn.endswith("\r\x1b[K")
    assert "mine/x  " in drawn and "  0% of 1.0 MB" in drawn


def test_check_without_a_name_checks_the_data_sets_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mnist").mkdir()
    assert run(tmp_path, "check") == 0
    assert "mnist" not in capsys.readouterr().out
    for file in find("mnist").files[1:]:
        (tmp_path / "mnist" / file.name).write_bytes(b"not it")
    assert find("mnist").download_state(tmp_path) == "partly"
    assert run(tmp_path, "check") == 1
    told = capsys.readouterr().out
    states = {line.split()[1]: line.split()[-1] for line in told.splitlines() if line.startswith("mnist")}
    assert list(states.values()) == [MISSING, CHANGED, CHANGED, CHANGED]
    assert "digits" in told and "cifar10" not in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fetch",), "has no action 'fetch'; use list, show, check, get"),
        (("get",), "needs the name of a data set"),
        (("list", "mnist"), "takes no name"),
        (("check", "cifar"), "unknown data set 'cifar'; did you mean 'cifar10"),
    ],
)
def test_mistakes_on_the_command_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path, *words)


def test_sizes_read_well() -> None:
    assert [size_text(size) for size in (None, 0, 999, 1125, 9912422, 170498071, 23_000_000_000)] == [
        "unknown",
        "0 B",
        "999 B",
        "1.1 kB",
        "9.9 MB",
        "170 MB",
        "23.0 GB",
    ]
