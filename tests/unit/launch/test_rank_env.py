"""The environment of a rank, as a pure function: GPUs, threads and wishes."""

from __future__ import annotations

from dataclasses import replace

from unisono.launch.rank_env import Placement, rank_environment

AT = Placement(
    num_local=4,
    num_nodes=2,
    node_rank=1,
    rendezvous="node01:29400",
    name="n",
    token="t",
    job="j",
    restart=0,
    threads=3,
    threads_given=False,
    gpus=(),
    launch_options=(),
)


def gpu(at: Placement, local_rank: int, **base: str) -> str | None:
    return rank_environment(base, at, local_rank).get("CUDA_VISIBLE_DEVICES")


def test_each_local_rank_gets_one_gpu() -> None:
    at = replace(AT, gpus=("2", "3", "GPU-5c", "7"))
    assert [gpu(at, local, CUDA_VISIBLE_DEVICES="2,3,GPU-5c,7") for local in range(4)] == ["2", "3", "GPU-5c", "7"]


def test_more_ranks_than_gpus_share_them_in_turn() -> None:
    assert [gpu(replace(AT, gpus=("0", "1")), local) for local in range(4)] == ["0", "1", "0", "1"]


def test_sets_of_strings_have_one_order_on_all_ranks() -> None:
    assert {rank_environment({}, AT, local)["PYTHONHASHSEED"] for local in range(4)} == {"0"}
    assert rank_environment({"PYTHONHASHSEED": "random"}, AT, 0)["PYTHONHASHSEED"] == "random"


def test_without_gpus_nothing_is_pinned() -> None:
    assert gpu(AT, 0) is None
    assert gpu(AT, 0, CUDA_VISIBLE_DEVICES="") == ""


def test_the_base_is_kept_and_not_changed() -> None:
    base = {"HOME": "/home/a", "UNISONO_RANK": "9", "UNISONO_ENGINE": "gloo", "OMP_NUM_THREADS": "8"}
    before = dict(base)
    env = rank_environment(base, replace(AT, launch_options=(("UNISONO_ENGINE", "shm"),)), 2)
    assert base == before
    assert (env["HOME"], env["UNISONO_RANK"], env["UNISONO_WORLD_SIZE"], env["UNISONO_ENGINE"]) == ("/home/a", "6", "8", "shm")
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("8", "3")
    assert rank_environment(base, replace(AT, threads_given=True), 2)["OMP_NUM_THREADS"] == "3"


def test_a_rank_gets_its_further_variables_over_all_others() -> None:
    at = replace(AT, gpus=("0",), variables=tuple({"MINE": str(local), "UNISONO_JOB": "other"} for local in range(4)))
    env = rank_environment({"MINE": "inherited", "YOURS": "kept"}, at, 2)
    assert (env["MINE"], env["YOURS"], env["UNISONO_JOB"], env["CUDA_VISIBLE_DEVICES"]) == ("2", "kept", "other", "0")


def test_what_is_meant_for_one_process_alone_is_not_inherited() -> None:
    base = {"UNISONO_PRIVATE": "SECRET DOOR", "SECRET": "s", "DOOR": "d", "HOME": "/home/a"}
    env = rank_environment(base, AT, 0)
    assert not {"UNISONO_PRIVATE", "SECRET", "DOOR"} & set(env) and env["HOME"] == "/home/a"
