"""The page of `bench.gpu`: tables of samples a second, what must hold, and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.bounds import Bound, judge
from bench.contenders.gpu import BEST, LIGHTNING, LOADER, OURS
from bench.gpu_cases import CASES, Case
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import Estimate, Samples, estimate, ratio, restored

LEAST_OF_HAND, LEAST_OF_PEERS = 0.95, 6.0


def merged(results: Sequence[Result]) -> dict[str, Any]:
    """Pure: raw data of several runs of the same benchmark as one; of a case that was measured twice, the later."""
    blocks = {key: block for result in results for key, block in result["blocks"].items()}
    settings: dict[str, Any] = {"cases": {}}
    for result in results:
        settings = {**result["settings"], "cases": {**settings["cases"], **result["settings"]["cases"]}}
    return {
        **results[-1],
        "command": "\n    ".join(result["command"] for result in results),
        "quick": any(result["quick"] for result in results),
        "sittings": [sitting for result in results for sitting in result["sittings"]],
        "settings": settings,
        "contenders": {name: about for result in results for name, about in result["contenders"].items()},
        "blocks": {key: blocks[key] for key in CASES if key in blocks},
    }


def speed(batch: int, samples: Samples) -> Estimate:
    """Pure: samples a second."""
    return estimate(batch / samples.by_round * 1e6)


def bounds_of(case: Case, batch: int, samples: Mapping[str, Samples]) -> list[Bound]:
    """Pure: what the case must show; nothing is judged by a loop by hand that is slower than it must be."""
    if OURS not in samples:
        return [Bound(case.name, f"{OURS} took no part", "-", "not judged")]
    mine, found = samples[OURS], list[Bound]()
    if case.most_us:
        found.append(judge(case.name, estimate(mine.by_round), "us a step", at_most=case.most_us))
    if case.reach:
        if BEST not in samples:
            return [*found, Bound(case.name, f"`{BEST}` took no part", "-", "not judged")]
        by_hand = speed(batch, samples[BEST])
        found.append(judge(f"{case.name}, by hand", by_hand, "samples/s by hand", at_least=case.reach))
        if found[-1].verdict == "MISSED":
            return [*found, Bound(case.name, "the loop by hand is too slow to compare with", "-", "not judged")]
    if case.least:
        found.append(judge(case.name, speed(batch, mine), "samples/s", at_least=case.least))
    elif case.reach:
        found.append(judge(case.name, ratio(samples[BEST], mine), f"times as fast as {BEST}", at_least=LEAST_OF_HAND))
        peers = [peer for peer in (LOADER, LIGHTNING) if peer in samples]
        for peer in peers:
            found.append(judge(case.name, ratio(samples[peer], mine), f"times as fast as {peer}", at_least=LEAST_OF_PEERS))
    return found


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    tables, bounds, told, chosen = list[Table](), list[Bound](), list[str](), list[str]()
    for key, block in result["blocks"].items():
        case, samples = CASES[key], restored(block["times_us"])
        tables.append(_table(case, block, samples))
        bounds += bounds_of(case, block["batch"], samples)
        if OURS in samples:
            told.append(f"{key} {speed(block['batch'], samples[OURS]).value:,.0f}")
        chosen += [f"`{name}` at {key}: {state['chosen']}." for name, state in block["states"].items() if state.get("chosen")]
    effort = result["settings"]["effort"]
    rounds = ", ".join(f"{key} {block['rounds']}" for key, block in result["blocks"].items())
    return Page(
        question="How many samples a second does a GPU learn from, against loops by hand, a DataLoader and Lightning?",
        answer=f"Unisono, samples a second on one GPU: {', '.join(told)}.",
        result=result,
        setup="The same network, optimiser (SGD with momentum 0.9), batch and random images of bytes for all, in bf16, one process "
        "on one GPU. Every contender has its own process, all alive during the whole case and asleep unless it is their turn.",
        tables=tables,
        bounds=bounds,
        lists={"What was chosen": chosen},
        reading=[
            f"Rounds: {rounds}. A turn is a few steps that are not timed (batches that were read ahead cost nothing) and about "
            f"{effort['turn_s']:g} s in {effort['num_calls']} timed parts; a part ends when the GPU has done its last step.",
            INTERLEAVED,
            "A loop by hand that does not reach what it must is no yardstick, and its row is not judged.",
            "CPU time is that of the thread that trains (`time.thread_time`); it holds the wait for the GPU where the driver "
            "spins. `host` is the case that shows what a step costs the host: next to no work for the GPU.",
        ],
        raw="`times_us[contender][rank][round][part]`, the time of a step",
    )


def _table(case: Case, block: Mapping[str, Any], samples: Mapping[str, Samples]) -> Table:
    """The rows of one case."""
    base = BEST if BEST in samples else OURS if OURS in samples else next(iter(samples), "")
    label, rows, drawn = f"times as fast as {base}", list[Mapping[str, str]](), dict[str, Estimate]()
    for name, one in samples.items():
        state = block["states"].get(name, {})
        drawn[name] = ratio(samples[base], one)
        rows.append(
            {
                case.name: name,
                "samples/s": f"{speed(block['batch'], one).value:,.0f}",
                label: "1" if name == base else str(drawn[name]),
                "us a step": f"{one.median:,.0f}",
                "CPU us a step": f"{state['cpu_us']:,.0f}" if "cpu_us" in state else "-",
                "GPU memory, GiB": f"{state['memory_gib']:.1f}" if "memory_gib" in state else "-",
                "loss at the end": f"{state['loss']:.3f}" if "loss" in state else "-",
            }
        )
    return Table.of(rows, f"`{case.name}`: {case.about}.", drawn=drawn, drawn_label=label, drawn_title=case.name)
