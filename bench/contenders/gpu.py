"""The ways to train on a GPU that `bench.gpu` compares. What their ranks run is in `bench/ranks/gpu*.py`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.contenders.contender import NOISE, Contender
from bench.gpu_cases import CASES, Case
from bench.groups import Launch, RankSlot

OURS, BEST, LOADER, LIGHTNING = "Unisono", "by hand, captured and compiled", "DataLoader", "Lightning"
WORKERS, QUICK_WORKERS = 8, 2
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    OURS: {"precision": "bf16", "compile": "auto", "capture": "auto"},
    "Unisono A/A": {"precision": "bf16", "compile": "auto", "capture": "auto"},
    "Unisono, uncaptured": {"precision": "bf16", "compile": "off", "capture": "off"},
}
"""What each is given on the command line; what the version that is measured does not have is left out."""


@dataclass(frozen=True)
class Way(Contender):
    """One way to train on a GPU."""

    how: Mapping[str, Any] = field(default_factory=dict)
    """For its rank."""
    without: Sequence[str] = ()
    """Cases in which it takes no part."""


def start(how: Mapping[str, Any], case: Case, device: str, is_small: bool, num_ranks: int, slot: RankSlot) -> list[Launch]:
    """Pure: its one rank, which may use all cores, as it would alone."""
    assert num_ranks == 1
    order = {"case": case.name, "device": device, "small": is_small, "how": how}
    # As many threads as one would have without a setting; on a CPU one, as that is no measurement.
    threads = str(os.cpu_count() or 1) if device == "cuda" else "1"
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    return [Launch(slot.program("gpu", str(slot.folder), json.dumps(order)), variables)]


def ways(num_workers: int, hand_mode: str, changes: Mapping[str, str]) -> list[Way]:
    """Pure: all of them. `hand_mode`: the mode of torch.compile in the loop by hand; `changes`: other options for Unisono."""
    on_device = "the images as bytes on the GPU, gathered there by number; bf16 autocast"
    loader = f"a DataLoader with {num_workers} workers and pinned memory, batches copied without waiting; bf16 autocast, eager"

    def hand(mode: str | None, captures: bool, streams: bool = False) -> dict[str, Any]:
        return {"kind": "hand", "options": {"compile_mode": mode, "captures": captures, "streams": streams}}

    def ours(name: str) -> dict[str, Any]:
        given = {**OPTIONS[name], **(changes if name != "Unisono, uncaptured" else {})}
        return {"kind": "unisono", "options": given}

    def made(name: str, kind: str, about: str, how: Mapping[str, Any], *without: str) -> Way:
        return Way(name, kind, about, start, how=how, without=without)

    resident = [name for name, case in CASES.items() if not case.is_streamed]
    user = "`un.train` of a task with an array of bytes and a declared scaling, console and metrics.jsonl as users have them; "
    return [
        made(
            BEST,
            "hand",
            f"{on_device}; model, loss and scaling compiled (torch.compile, {hand_mode}); gather, forward, backward and fused SGD "
            "in one CUDA graph",
            hand(hand_mode, True),
        ),
        made("by hand, captured", "other", "the same without torch.compile", hand(None, True), "resnet50", "resnet50-streamed"),
        made("by hand, eager", "other", f"{on_device}; no graph, not compiled", hand(None, False)),
        made(
            "by hand, streamed",
            "other",
            "the first, but its images are gathered in the host's memory by a thread and copied to the GPU beside the step before",
            hand(hand_mode, True, True),
            *resident,
        ),
        made(OURS, "ours", user + "bf16", ours(OURS)),
        made("Unisono A/A", "noise", NOISE, ours("Unisono A/A")),
        made(
            "Unisono, uncaptured",
            "other",
            "the same with `--capture off --compile off`",
            ours("Unisono, uncaptured"),
            "resnet50-streamed",
        ),
        made(LOADER, "loader", loader, {"kind": "loader", "options": {"num_workers": num_workers}}, "resnet50-streamed"),
        made(
            LIGHTNING,
            "lightning",
            "Lightning's Trainer with `bf16-mixed` and the same DataLoader; no logger, checkpoint or progress bar",
            {"kind": "lightning", "options": {"num_workers": num_workers}},
            "resnet50-streamed",
        ),
    ]
