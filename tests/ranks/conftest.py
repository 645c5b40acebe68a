"""Programs and clusters, for tests that start them as users do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.launching import Script
from tests.system import hosts, slurm


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "program.py")


@pytest.fixture(scope="session")
def slurm_of_the_session() -> Iterator[slurm.SlurmCluster]:
    if reason := slurm.why_not():
        pytest.skip(reason)
    with slurm.slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(slurm_of_the_session: slurm.SlurmCluster) -> Iterator[slurm.SlurmCluster]:
    """A real SLURM with three nodes and no jobs; skips where there cannot be one."""
    yield slurm_of_the_session
    slurm_of_the_session.end_jobs()


@pytest.fixture
def two_hosts() -> Iterator[list[hosts.Host]]:
    """Two test hosts with a link of 1 Gbit/s each; skips where there cannot be any."""
    if reason := hosts.why_not():
        pytest.skip(reason)
    with hosts.network_hosts(2) as pair:
        yield pair
