"""What `bench.reference_trainings` runs: commands of `unisono` in a folder that holds the files of `bench/references`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """Some commands in one folder, one after the other, and what they leave there."""

    name: str
    commands: Sequence[str]
    """As they are typed, without `unisono`."""
    keras: str | None = None
    """The backend."""
    varies: frozenset[str] = frozenset()
    """Run directories that chance decides, so that only `equal` speaks of them."""
    without: frozenset[str] = frozenset()
    """Aspects of the others that chance decides."""
    equal: Sequence[tuple[str, str]] = ()
    """Pairs of run directories that must have the same weights and epochs."""
    files: Sequence[str] = ()
    """Others whose content counts, e.g. what `evaluate` writes."""


def train(*words: str, task: str = "torch_task.py", out: str = "run") -> str:
    return " ".join(["train", task, *words, "--threads 1 --log-every 1 --quiet --out", out])


def _server(algorithm: str, *words: str) -> Reference:
    return Reference(f"{algorithm}, simulated", [train("--simulate 3 --algorithm", algorithm, *words)])


PAPERS_DOWNPOUR = "--set algorithm.optimizer_on=server --set algorithm.damping=off"
DOWNPOUR = f"--algorithm downpour {PAPERS_DOWNPOUR} --set algorithm.pull_every=2 --epochs 2"
"""As `references/downpour_run` was trained, with two workers."""
MOMENTUM = "--set optimizer.momentum=0.9"
TWO = f"-n 2 --hash-every 3 {MOMENTUM}"
SHARDED = "--shards 4 --hash-every 4"
DILOCO = "--algorithm diloco --set algorithm.period=5 --set algorithm.wire=bf16 --set algorithm.overlap=2"
LOCAL_SGD = f"-n 2 --algorithm local_sgd --set algorithm.period=4 {MOMENTUM}"
STEP_OF_STOP = "--max-steps 16"
"""In the middle of the second epoch."""

REFERENCES = (
    *(Reference(f"Keras on {name}", [train("-n 2", task="keras_task.py")], keras=name) for name in ("jax", "tensorflow", "torch")),
    Reference(
        "one worker",
        [
            train("--set optimizer=adam --set monitor=val_f1 --patience 2"),
            "evaluate run",
            "apply run --kind raw --out raw.npy --quiet",
        ],
        files=("evaluation-test.json", "raw.npy"),
    ),
    Reference(
        "two workers, stop and resume",
        [train(TWO, STEP_OF_STOP), train(TWO), train(TWO, out="through")],
        equal=(("run", "through"),),
    ),
    Reference("three workers, uneven parts, accumulate", [train("-n 3 --global-batch 50 --accumulate 3 --set clip_norm=0.5")]),
    Reference("bf16", [train("-n 2 --precision bf16 --set optimizer=adamw --set optimizer.weight_decay=0.1")]),
    Reference("all data, from weights", [train("--epochs 1"), train("--all-data --init-from run/weights.safetensors", out="more")]),
    Reference("step of its own", [train("-n 2", task="game_task.py")]),
    Reference("Lightning", [train("-n 2", task="lightning_task.py")]),
    Reference("Keras, fit of a strategy", ["run -n 2 --threads 1 keras_fit.py"], keras="torch", files=("fitted.json",)),
    Reference("loop of its own", ["run -n 2 --threads 1 own_loop.py"], files=("looped.json",)),
    Reference("program for Horovod", ["horovodrun -np 2 {python} horovod_loop.py"], files=("horovod.json",)),
    Reference(
        "sharded",
        [train("-n 2", SHARDED, STEP_OF_STOP), train("-n 3", SHARDED), train(SHARDED, out="one")],
        equal=(("run", "one"),),
    ),
    Reference("local_sgd", [train(LOCAL_SGD, STEP_OF_STOP), train(LOCAL_SGD)]),
    Reference("local_sgd in groups", [train("-n 4 --group 2 --algorithm local_sgd --set algorithm.momentum=reset")]),
    Reference("post_local_sgd", [train("-n 2 --algorithm post_local_sgd --set algorithm.switch_step=9 --set algorithm.period=3")]),
    Reference("diloco", [train("-n 2", DILOCO)]),
    _server("downpour", "--set algorithm.push_every=2 --set algorithm.optimizer_on=server"),
    _server("easgd", "--set algorithm.period=3 --set algorithm.momentum=0.5"),
    Reference("gem, simulated", [train("--simulate 3 --algorithm gem", "--max-steps 40"), train("--simulate 3 --algorithm gem")]),
    _server("parameter_server"),
    Reference(  # which of the workers has which batch, their sum does not tell
        "parameter_server", [train("-n 3 --algorithm parameter_server")], without=frozenset(("state",))
    ),
    Reference(
        "downpour, a real run and its repetition",
        [train("-n 3", DOWNPOUR), train("-n 3", DOWNPOUR, "--replay run", out="again")],
        varies=frozenset(("run", "again")),
        equal=(("run", "again"),),
    ),
    Reference(
        "downpour, a recorded run repeated with two servers, and in one process",
        [
            train("-n 4 --servers 2", DOWNPOUR, "--replay downpour_run"),
            train("--simulate 2", DOWNPOUR, "--replay downpour_run", out="alone"),
        ],
        equal=(("run", "alone"),),
    ),
    Reference(
        "folds of a search",
        [
            "tune torch_task.py --folds 2 --trials 3 --epochs 2 --search random --seed 4 --threads 1 --quiet --out study",
            "train torch_task.py --from-study study --threads 1 --log-every 1 --quiet --out best",
        ],
        files=("best.toml",),
    ),
)
