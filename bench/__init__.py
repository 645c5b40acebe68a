"""Measured against peers, side by side, in one run: `python -m bench.collectives`, `bench.algorithms`, `bench.overlap`."""
