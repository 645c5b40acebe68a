"""What the page of `bench.tune` says around its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]


def intro(name: str, part: Result) -> str:
    """Pure: what was done, before the table."""
    settings = part["settings"]
    if name == "overhead":
        return (
            f"{settings['trials']} trials that wait {settings['seconds']:g} s and do nothing else, four at a time, of three "
            "settings: a number, a logarithmic one and\na whole one. A gap is the time between the end of a trial and the begin "
            "of the next on the same worker: telling the result,\nchoosing the next point, and everything on the way."
        )
    if name == "ahead":
        return (
            "Points are proposed before blocks ask for them, by a thread beside the one that answers. A Gaussian process takes "
            "long to\npropose; where proposals are ahead, a block does not wait for it."
        )
    if name == "blocks":
        return (
            "Studies on a virtual clock with the real coordinator, search, store and journal; blocks, sockets and the waiting "
            f"are made up.\nTrials take lognormal times (sigma 0.5), and there are {settings['trials_each']} for each block. "
            "What the coordinator does takes on the virtual clock\nwhat it takes in reality, and letters wait in line meanwhile."
        )
    return (
        f"The best value after {settings['trials']} trials, the mean over {settings['seeds']} seeds; less is better. 4 blocks on "
        f"a virtual clock, whose trials take lognormal times\n(sigma {settings['sigma']:g}), against Optuna's default sampler "
        f"(TPE) with the same seed, one trial after the other, each of which takes as long.\nOurs is shown with the search that "
        f"`unisono tune` takes for such a space unless it is told otherwise ({settings['default_search']}), and with TPE."
    )


def reading(name: str, part: Result) -> list[str]:
    """Pure: what a reader must know to judge the numbers."""
    return {"overhead": _overhead, "ahead": _ahead, "blocks": _blocks, "quality": _quality}[name](part)


def _overhead(part: Result) -> list[str]:
    settings = part["settings"]
    stolen_s = sum(run["stolen_cpu_s"] for run in part["runs"].values() if "stolen_cpu_s" in run)
    return [
        f"{settings['rounds']} rounds; in each every contender runs one study in processes of its own, in a shuffled order. "
        "Numbers are medians over rounds of what each run gave; the ratio is that of the same round, with the 95 % interval of "
        "a bootstrap over rounds. A bound is missed when the whole interval lies beyond it.",
        "Each trial notes when it begins, once it knows its settings, and when it ends, by a clock that all processes share. "
        "The time before a worker's first trial and after its last does not count as a gap; `start` is how long after the start "
        "of the program all workers had a trial.",
        "Busy: the share of the time between the begin of a worker's first trial and the end of its last in which it had one; "
        "`least block` is the least of all workers and rounds.",
        "The trials of all workers end at nearly the same time, since all take equally long: the hardest case for one coordinator.",
        "The A/A row is the same again: what it differs from the first row is what the machine does, not the code.",
        "All that use TPE have Optuna's sampler with `constant_liar=True`; its first 10 trials are drawn at random. Ours, the "
        "journal and SQLite keep every trial on the disk as it goes; `optuna alone` and `optuna threads` keep nothing.",
        f"CPU time that the host of a virtual machine took away during the measurement: {stolen_s:.1f} s.",
    ]


def _ahead(_: Result) -> list[str]:
    return [
        "Answered at once: the share of trials, but for each block's first, in whose gap nobody asked for a proposal in vain; "
        "gaps of several blocks overlap, so a block may be counted as waiting because of another. Where a proposal takes less "
        "than 0.5 % of a trial, a block waits by intention for one that knows all results. A block whose trials are shorter than "
        "2 s is told the next one when it is half-way through.",
        "A proposal: how long the search took to make one, in the thread of its own; that the process also answers blocks is in "
        "it. Optuna by itself makes proposals in the process of the worker, which waits.",
        "For gp a process loads PyTorch once; ours in a thread of its own while the first trials run.",
        "Demand is 4 / the length of a trial. Where the search makes fewer in a second, nothing can be ahead.",
    ]


def _blocks(_: Result) -> list[str]:
    return [
        "Busy: the share of all blocks' time from the start of the study, when all are ready, to the end of each one's last "
        "trial or until no trial is left to begin, whichever is later; `after the first` counts from the begin of each one's "
        "first trial.",
        "Side by side: proposals are made by a second server that takes nothing from the coordinator. One lock: both take "
        "turns, one proposal or one round of letters at a time. Python's lock is between the two, nearer to the second; a real "
        "thread may be interrupted every 0.5 ms, the simulated one only after a whole proposal.",
        "`coordinator could`: trials divided by the time that the coordinator worked. First / last proposals: the mean of the "
        "first and of the last hundred at most: a search that models all earlier trials takes longer the more there are.",
        "A series ends with the first number of blocks that is busy less than asked, or that takes too long to simulate.",
        "DeepHyper reports above 95 % with 1,920 workers on a supercomputer (arXiv:2207.00479); there every worker has a search of "
        "its own and nobody coordinates, and trials, machine and way of counting are others.",
        "The folder of the study is on a local disk. On a network file system each round's wait for the disk is longer.",
    ]


def _quality(part: Result) -> list[str]:
    settings = part["settings"]
    problems = [
        f"{name}: {about['about']}" + (f"; the least value is {about['best']:g}." if about["best"] is not None else ".")
        for name, about in part["problems"].items()
    ]
    return [
        *problems,
        "Differences are of the means, ours less Optuna's, pair by pair with the same seed, with the 95 % interval of a "
        "bootstrap over seeds. The first bound is missed when the whole interval lies above 0, the second unless it lies wholly "
        "below.",
        "The bounds are judged for the default search. The rows of TPE compare the same search: what they find less than one by "
        "one is what parallel blocks cost, and what the default finds more than they is what the choice of a search gives.",
        "With 4 at a time: Optuna's sampler asked for the next point when a trial has ended, at once and with nothing made ahead. "
        "What 4 at a time find less than one by one there, they find less because each is chosen before 3 others have ended; "
        "what ours finds less than that would be the price of proposals ahead of demand.",
        "In the same time: what Optuna had found by the moment when our last trial ended.",
        "The simulation runs the real search, coordinator and rules of proposals ahead of demand; trials take "
        f"{settings['mean_s']:g} virtual seconds on average. To see whether it can be believed, each problem is also searched "
        f"once by a real `un.tune` with 4 blocks and the default search, "
        f"whose trials take {settings['real_mean_s']:g} s on average; its best value "
        "should lie among those of the seeds that were simulated.",
        "The time that proposals take is measured and runs on the virtual clock, so another machine, or a busy one, may give other "
        "trials.",
    ]
