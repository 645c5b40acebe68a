"""Tokens and ports: alike on all processes of a job, and within bounds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unisono.cluster.rendezvous import HIGHEST_PORT, LOWEST_PORT, NUM_PORTS, derived_port, host_port, job_token, ports
from unisono.errors import UsageError


def test_tokens_differ_between_jobs() -> None:
    assert job_token("a", "b") == job_token("a", "b")
    assert len({job_token("a", "b"), job_token("ab"), job_token("a", "b", ""), job_token("", "ab"), job_token("b", "a")}) == 5


def test_derived_ports_and_their_neighbours_stay_in_the_range() -> None:
    firsts = [derived_port(job_token(str(number))) for number in range(5000)]
    assert min(firsts) >= LOWEST_PORT
    assert max(firsts) + NUM_PORTS - 1 <= HIGHEST_PORT
    assert len(set(firsts)) > 3000  # spread out, though not all different


@pytest.mark.parametrize("first", [1, 15000, 65472, 65473, 65535])
def test_the_first_port_is_tried_first_and_all_are_valid_and_together(first: int) -> None:
    found = ports(first, "token")
    assert found[0] == first
    assert len(set(found)) == len(found) == NUM_PORTS
    assert 1 <= min(found) <= max(found) <= 65535
    assert max(found) - min(found) == NUM_PORTS - 1


def test_jobs_with_the_same_first_port_go_different_ways() -> None:
    assert ports(20000, "a") == ports(20000, "a")
    assert ports(20000, "a")[1:] != ports(20000, "b")[1:]
    assert set(ports(20000, "a")) == set(ports(20000, "b"))


def test_another_process_finds_the_same_ports() -> None:
    code = "from unisono.cluster.rendezvous import *; print(job_token('x'), derived_port('t'), *ports(20000, 't'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [job_token("x"), str(derived_port("t")), *map(str, ports(20000, "t"))]


def test_host_and_port() -> None:
    assert host_port("n1.site:80", "X") == ("n1.site", 80)
    assert host_port("[::1]:80", "X") == ("::1", 80)
    for text in ("n1", "n1:0", "n1:99999", "n1:-1", ":1", "::1:80", "[n1]:80", "n 1:80", "n1:٣"):
        with pytest.raises(UsageError, match="X must be host:port"):
            host_port(text, "X")
