"""What `bench.jets` measures: sizes of model and jets, rows of the tables, and forms of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAIN, ONE, AGAIN, TWO, APART = "no communication layer", "1 worker", "1 worker A/A", "2 workers", "2 loops that never talk"
WORKERS: Mapping[str, int] = {ONE: 1, AGAIN: 1, TWO: 2}
LOOPS: Mapping[str, int] = {PLAIN: 1, APART: 2}
ROWS = (PLAIN, ONE, AGAIN, TWO, APART)

FORMS: Mapping[str, str | None] = {
    "PyTorch": None,
    "Keras on torch": "torch",
    "Keras on tensorflow": "tensorflow",
    "Keras on jax": "jax",
}
"""Of the network, with the backend of Keras."""


@dataclass(frozen=True)
class Case:
    """One size. The first epoch is for warming up."""

    particles: int
    num_jets: int
    """Of which four fifths are for training."""
    epochs: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.particles} particles"

    def options(self) -> list[str]:
        """Pure: of `unisono train`."""
        sizes = (f"model.particles={self.particles}", f"data.particles={self.particles}", f"data.num_jets={self.num_jets}")
        return ["--epochs", str(self.epochs), *(part for size in sizes for part in ("--set", size))]


FULL = (Case(particles=16, num_jets=6400, epochs=3, rounds=6), Case(particles=100, num_jets=320, epochs=3, rounds=5))
"""The default size of the example, and the published one, where a step takes 40 times as long."""
QUICK = (Case(particles=16, num_jets=640, epochs=2, rounds=1), Case(particles=100, num_jets=160, epochs=2, rounds=1))
