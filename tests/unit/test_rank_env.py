"""The environment of a rank, as a pure function: GPUs, threads and wishes."""

from __future__ import annotations

from dataclasses import replace

from unisono.cluster.rank_env import Placement, rank_environment

AT = Placement(
    num_local=4,
    num_nodes=2,
    node_rank=1,
    rendezvous="node01:29400",
    token="t",
    job="j",
    restart=0,
    threads=3,
    threads_asked=False,
    gpus=(),
    wishes=(),
)


def gpu(at: Placement, local_rank: int, **base: str) -> str | None:
    return rank_environment(base, at, local_rank).get("CUDA_VISIBLE_DEVICES")


def test_each_local_rank_gets_one_gpu() -> None:
    at = replace(AT, gpus=("2", "3", "GPU-5c", "7"))
    assert [gpu(at, local, CUDA_VISIBLE_DEVICES="2,3,GPU-5c,7") for local in range(4)] == ["2", "3", "GPU-5c", "7"]


def test_more_ranks_than_gpus_share_them_in_turn() -> None:
    assert [gpu(replace(AT, gpus=("0", "1")), local) for local in range(4)] == ["0", "1", "0", "1"]


def test_without_gpus_nothing_is_pinned() -> None:
    assert gpu(AT, 0) is None
    assert gpu(AT, 0, CUDA_VISIBLE_DEVICES="") == ""


def test_the_base_is_kept_and_not_changed() -> None:
    base = {"HOME": "/home/a", "UNISONO_RANK": "9", "UNISONO_ENGINE": "gloo", "OMP_NUM_THREADS": "8"}
    before = dict(base)
    env = rank_environment(base, replace(AT, wishes=(("UNISONO_ENGINE", "shm"),)), 2)
    assert base == before
    assert (env["HOME"], env["UNISONO_RANK"], env["UNISONO_WORLD_SIZE"], env["UNISONO_ENGINE"]) == ("/home/a", "6", "8", "shm")
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("8", "3")
    assert rank_environment(base, replace(AT, threads_asked=True), 2)["OMP_NUM_THREADS"] == "3"
