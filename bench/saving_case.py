"""What `bench.checkpoint` trains: a network whose weights and Adam's two moments together are about 100 MB."""

from __future__ import annotations

from itertools import pairwise

ABOUT = "dense 64-2048-2048-2048-10 with ReLU, float32, Adam; 16 samples a step"
FEATURES, WIDTH, CLASSES = 64, 2048, 10
SIZES = (FEATURES, WIDTH, WIDTH, WIDTH, CLASSES)
BATCH = 16
STEPS_PER_EPOCH = 512
LR = 0.0003
NUM_PARAMETERS = sum(inputs * outputs + outputs for inputs, outputs in pairwise(SIZES))
STATE_BYTES = 3 * 4 * NUM_PARAMETERS
"""Weights and two moments, each float32."""
