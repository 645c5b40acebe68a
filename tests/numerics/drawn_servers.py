"""Drawn tasks that a server trains: with one worker that makes the steps of plain training, with the synchronous parameter server
and any number, and with elastic averaging of one worker. Workers are virtual ones of one process."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.numerics.drawn_tasks import Drawn, draw

SERVERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("parameter_server", {}),
    ("downpour", {"optimizer_on": "server", "damping": "off"}),
    ("downpour", {"optimizer_on": "server"}),
    ("downpour", {}),
    ("downpour", {"push_every": 3, "pull_every": 3}),
    ("gem", {"momentum": 0.0}),
    ("gem", {"momentum": 0.0, "clip": None}),
    ("easgd", {"period": 1}),
    ("easgd", {"period": 3, "elastic": 0.4}),
)
"""Algorithms with options of which docs/algorithms/ says that one worker is plain training; of easgd its formula is known."""
SYNCHRONOUS = "parameter_server"


def draw_server(seed: int) -> Drawn:
    """Pure: the task of this number, trained by one process with virtual workers."""
    one = random.Random(f"server {seed}")
    algorithm, options = one.choice(SERVERS)
    virtual = one.choice((1, 2, 3)) if algorithm == SYNCHRONOUS else 1
    drawn = draw(one.randrange(10**9))
    drawn = replace(drawn, algorithm=algorithm, server_options=options, virtual=virtual, workers=1, shards=None)
    if algorithm == "easgd":  # whose weights that count are not those by which running statistics were made
        drawn = replace(drawn, norm=False)
    if virtual > 1:  # which take equal parts of each batch, and so other statistics of batch-norm
        drawn = replace(drawn, norm=False, global_batch=6 * one.randint(1, 3))
    if {"push_every", "period"} & options.keys():  # a call may bring the last steps of one epoch with the first of the next
        drawn = replace(drawn, epochs=1, stop_after=None)
    if drawn.schedule[1].get("warmup_steps", 0) > drawn.steps_per_epoch * drawn.epochs:
        drawn = replace(drawn, schedule=(None, {}))
    if algorithm == "gem":  # which is an optimiser itself
        drawn = replace(drawn, optimizer=("sgd", {}), clip_norm=None, groups=False, hook=False)
    return drawn
