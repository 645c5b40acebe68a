"""SLURM's compressed lists, against a generator that knows the answer and against SLURM itself."""

from __future__ import annotations

import random
import shutil
import string
import subprocess
from pathlib import Path

import pytest

from unisono.cluster.launchers import slurm_hostlist
from unisono.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("login-3.site.edu", ["login-3.site.edu"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        ("10.0.0.[9-11]", ["10.0.0.9", "10.0.0.10", "10.0.0.11"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[001,3]", ["n001", "n3"]),
        ("c[008-11]", ["c008", "c009", "c010", "c011"]),
        ("nid0[1111-1113,2222],gpu[01-03]", ["nid01111", "nid01112", "nid01113", "nid02222", "gpu01", "gpu02", "gpu03"]),
        ("a,b[1-2],c", ["a", "b1", "b2", "c"]),
        ("rack[1-2]node[01-02]", ["rack1node01", "rack1node02", "rack2node01", "rack2node02"]),
        ("a[1-2][3-4]", ["a13", "a14", "a23", "a24"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n[1-2].cluster,x", ["n1.cluster", "n2.cluster", "x"]),
        ("[1-2]", ["1", "2"]),
        # SLURM's own order of three groups
        ("a[1-2]b[3-4]c[5-6]", ["a1b3c5", "a1b3c6", "a2b3c5", "a2b3c6", "a1b4c5", "a1b4c6", "a2b4c5", "a2b4c6"]),
    ],
)
def test_host_lists_are_expanded(text: str, expected: list[str]) -> None:
    assert slurm_hostlist.hosts(text) == expected


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "no host name at character 1"),
        ("a,", "no host name at character 3"),
        (",a", "no host name at character 1"),
        ("a,,b", "no host name at character 3"),
        ("a[1-2", "unexpected '['"),
        ("a]1", "unexpected ']'"),
        ("a b", "unexpected ' '"),
        ("a[[1]]", "unexpected '['"),
        ("a[]", "holds ''"),
        ("a[x]", "holds 'x'"),
        ("a[1,,2]", "holds ''"),
        ("a[1-2-3]", "holds '1-2-3'"),
        ("a[-1]", "holds '-1'"),
        ("a[٣]", "holds '٣'"),
        ("a[5-3]", "the range 5-3 in brackets has -1 members"),
        ("a[1-999999999]", "has 999999999 members"),
        ("a[1-9999]b[1-9999]", "more than 65536 hosts"),
    ],
)
def test_malformed_host_lists_are_refused_with_the_place(text: str, fact: str) -> None:
    with pytest.raises(UsageError) as caught:
        slurm_hostlist.hosts(text, "SLURM_STEP_NODELIST")
    assert fact in str(caught.value)
    assert "SLURM_STEP_NODELIST" in str(caught.value)
    assert "srun" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", [1]), ("2,1", [2, 1]), ("2(x3),1", [2, 2, 2, 1]), ("4(x2),2(x1),3", [4, 4, 2, 3])],
)
def test_tasks_per_node_are_expanded(text: str, expected: list[int]) -> None:
    assert slurm_hostlist.tasks(text) == expected


@pytest.mark.parametrize("text", ["", "2(x3", "2x3", "2(x)", "a", "-1", "1,,1", "2(3)", "1(x999999999)"])
def test_malformed_tasks_per_node_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"SLURM_TASKS_PER_NODE must look like 2\(x3\),1"):
        slurm_hostlist.tasks(text, "SLURM_TASKS_PER_NODE")


def _word(rng: random.Random, letters: str = string.ascii_lowercase) -> str:
    return "".join(rng.choices(letters, k=rng.randint(1, 4)))


def _group(rng: random.Random) -> tuple[str, list[str]]:
    """Text inside a bracket and what it stands for."""
    parts: list[str] = []
    numbers: list[str] = []
    for _ in range(rng.randint(1, 3)):
        low, count, width = rng.randint(0, 120), rng.randint(1, 4), rng.choice((0, 0, 2, 3, 5))
        names = [f"{low + offset:0{width}d}" if width else str(low + offset) for offset in range(count)]
        # the width of a range is that of its first number, so 9-11 is unpadded and 09-11 is padded
        parts.append(names[0] if count == 1 else f"{names[0]}-{low + count - 1}")
        numbers.extend(str(low + offset).zfill(len(names[0])) for offset in range(count))
    return ",".join(parts), numbers


def _list(rng: random.Random, suffixes: bool) -> tuple[str, list[str]]:
    items, hosts = [], []
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(3 if suffixes else 2)
        name = _word(rng)
        if kind == 0:
            items.append(name)
            hosts.append(name)
            continue
        inside, numbers = _group(rng)
        suffix = _word(rng, "-.xy") if kind == 2 else ""
        if rng.random() < 0.4:
            outer, leading = _group(rng)
            middle = _word(rng)
            items.append(f"{name}[{outer}]{middle}[{inside}]{suffix}")
            hosts.extend(f"{name}{first}{middle}{second}{suffix}" for first in leading for second in numbers)
        else:
            items.append(f"{name}[{inside}]{suffix}")
            hosts.extend(f"{name}{number}{suffix}" for number in numbers)
    return ",".join(items), hosts


def test_random_lists_expand_to_what_they_were_made_from() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        text, expected = _list(rng, suffixes=True)
        assert slurm_hostlist.hosts(text) == expected, text


def test_random_text_is_expanded_or_refused_but_nothing_else() -> None:
    rng = random.Random(0)
    num_expanded = 0
    for _ in range(20000):
        text = "".join(rng.choices("ab01[],-. (x)٣", k=rng.randint(0, 10)))
        for read in (slurm_hostlist.hosts, slurm_hostlist.tasks):
            try:
                assert read(text)
                num_expanded += 1
            except UsageError as error:
                assert repr(text) in str(error)
    assert 500 < num_expanded < 39500


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="SLURM's scontrol is not installed; see tests/system/install")
def test_the_order_is_that_of_scontrol(tmp_path: Path) -> None:
    configuration = tmp_path / "slurm.conf"
    configuration.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    rng = random.Random(1)
    texts = [_list(rng, suffixes=False)[0] for _ in range(25)]
    texts += ["a[1-2]b[3-4]c[5-6]", "a[1-2]b[3-5]c[5-6]d[08-11]", "nid0[1111-1113,2222],gpu[01-08]", "10.0.0.[1-3]"]
    for text in texts:
        shown = subprocess.run(
            ["scontrol", "show", "hostnames", text],
            env={"SLURM_CONF": str(configuration)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert slurm_hostlist.hosts(text) == shown.stdout.split(), text
