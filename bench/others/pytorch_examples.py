"""Examples of PyTorch, with training loops of their own, moved by `un.DistributedOptimizer` and `un.ShardedLoader`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import unisono as un
from bench.others.program import BEFORE, FLOAT32_LIMIT, SEED, WEIGHTS, Found, Program, compiled
from unisono.data.sharding_plan import cut

MOVED = "`un.DistributedOptimizer`, `un.ShardedLoader`, `step(num_samples=...)`"
PICTURES = "75 random pictures"
NUM_PARTS = 2
NORM_OF_PARTS = "batch-norm of parts"

NO_DROPOUT = (r"\b(Dropout\w*)\((?:[^()]*)\)", r"\1(0.0)")
NO_NORM = (r"nn\.BatchNorm\w+\([^()]*\)", "nn.Identity()")
NO_SHUFFLE = (r"shuffle=True", "shuffle=False")
OPTIMIZER = (r"= ((?:torch\.)?optim\.\w+\((\w+)\.parameters\(\).*\))", r"= un.DistributedOptimizer(\1, \2, comm)")
STEP = (r"optimizer\.step\(\)", "optimizer.step(num_samples=len(data))")
TESTS = r"(?i)(?:test set|test loss|end of epoch|End of training).*"
"""Lines whose numbers are of all data on every worker."""


def _program(name: str, path: str, stand_in: str = PICTURES, **more: Any) -> Program:
    given = {"moved": MOVED, **more}
    return Program(family="pytorch_examples", name=name, repository="pytorch/examples", path=path, stand_in=stand_in, **given)


VAE = _program(
    "vae",
    "vae/main.py",
    arguments=["--epochs", "1", "--batch-size", "30"],
    edits=[NO_SHUFFLE, (r"torch\.randn_like\((\w+)\)", r"torch.sin(1000 * \1)")],
    move=[
        (
            r"(?s)torch\.utils\.data\.DataLoader\((.*?train=True.*?ToTensor\(\)\)),.*?\*\*kwargs\)",
            r"Sharded(\1, args.batch_size)",
        ),
        OPTIMIZER,
        STEP,
    ],
    documented="the loss is a sum over the samples of one worker; train.md: divide it by their number before backward()",
)
DCGAN = _program(
    "dcgan without batch-norm",
    "dcgan/main.py",
    stand_in="75 random pictures of 3 x 64 x 64",
    arguments=["--dataset", "fake", "--niter", "1", "--batchSize", "16", "--ngf", "4", "--ndf", "4", "--nz", "6", "--workers", "0"],
    environment={"STAND_IN_SAMPLES": "39"},
    edits=[
        NO_SHUFFLE,
        NO_NORM,
        (r"torch\.randn\(batch_size, nz, 1, 1, device=device\)", "noise_of(real_cpu, nz)"),
        (r"None:\n(.*)random\.randint\(1, 10000\)", r"None:\n\g<1>1"),
    ],
    move=[
        (r"(?s)torch\.utils\.data\.DataLoader\(dataset, batch_size=opt\.batchSize,.*?\)\)", "Sharded(dataset, opt.batchSize)"),
        OPTIMIZER,
        (r"(optimizer[DG])\.step\(\)", r"\1.step(num_samples=len(real_cpu))"),
    ],
)

PROGRAMS = [
    _program(
        "mnist",
        "mnist/main.py",
        arguments=["--epochs", "2", "--batch-size", "16", "--lr", "0.1"],
        edits=[NO_DROPOUT],
        move=[
            (r"torch\.utils\.data\.DataLoader\(dataset1,\s*\*\*train_kwargs\)", "Sharded(dataset1, args.batch_size)"),
            OPTIMIZER,
            STEP,
        ],
    ),
    _program(
        "mnist_rnn",
        "mnist_rnn/main.py",
        moved=f"{MOVED}; in both runs without batch-norm",
        arguments=["--epochs", "2", "--batch-size", "16"],
        edits=[NO_DROPOUT, NO_SHUFFLE, NO_NORM],
        move=[
            (r"(?s)torch\.utils\.data\.DataLoader\((.*?train=True.*?\]\)\)),.*?\*\*kwargs\)", r"Sharded(\1, args.batch_size)"),
            OPTIMIZER,
            STEP,
        ],
    ),
    VAE,
    replace(
        VAE,
        name="vae, its loss a mean",
        moved=f"{MOVED}; in both runs the summed loss is divided by the samples before `backward`",
        edits=[*VAE.edits, (r"loss\.backward\(\)", "(loss / len(data)).backward()")],
        documented="",
    ),
    DCGAN,
    replace(
        DCGAN,
        name="dcgan",
        moved=f"{MOVED}. Batch-norm is that of each worker, so the one process normalises both parts of a batch by themselves",
        edits=[one for one in DCGAN.edits if one is not NO_NORM],
        needs=NORM_OF_PARTS,
    ),
    _program(
        "word_language_model",
        "word_language_model/main.py",
        stand_in="a text of 2,000 random words of 40",
        moved="`un.DistributedOptimizer`, each worker's columns of the text, `synchronize(num_samples=...)` before the clipping",
        arguments=[
            *[
                "--data",
                ".",
                "--emsize",
                "12",
                "--nhid",
                "12",
                "--epochs",
                "2",
                "--batch_size",
                "5",
                "--bptt",
                "9",
                "--dropout",
                "0",
                "--lr",
                "0.01",
                "--use-optimizer",
            ]
        ],
        move=[
            (r"(?m)^(train_data = batchify\(.*\))", r"\1[:, comm.rank::comm.size].contiguous()"),
            (r"model\.init_hidden\(args\.batch_size\)", "model.init_hidden(train_data.size(1))"),
            OPTIMIZER,
            (r"(\n *)(torch\.nn\.utils\.clip_grad_norm_)", r"\1optimizer.synchronize(num_samples=len(targets))\1\2"),
        ],
    ),
    _program(
        "time_sequence_prediction",
        "time_sequence_prediction/train.py",
        stand_in="8 waves of 30 numbers",
        moved="`un.DistributedOptimizer` of LBFGS, each worker's rows, `step(closure, num_samples=...)`",
        arguments=["--steps", "2"],
        edits=[(r"torch\.load\('traindata\.pt'\)", "waves()"), (r"future = 1000", "future = 5")],
        move=[
            (r"(torch\.from_numpy\(data\[3:, .*?\]\))", r"\1[comm.rank::comm.size]"),
            OPTIMIZER,
            (r"optimizer\.step\(closure\)", "optimizer.step(closure, num_samples=len(input))"),
        ],
    ),
    _program(
        "siamese_network",
        "siamese_network/main.py",
        arguments=["--epochs", "1", "--batch-size", "16", "--test-batch-size", "8"],
        edits=[(r"(def __getitem__\(self, index\):)", r"\1\n        random.seed(index)")],
        limit=FLOAT32_LIMIT,
        move=[
            (r"torch\.utils\.data\.DataLoader\(train_dataset,\s*\*\*train_kwargs\)", "Sharded(train_dataset, args.batch_size)"),
            OPTIMIZER,
            (r"optimizer\.step\(\)", "optimizer.step(num_samples=len(targets))"),
        ],
    ),
]


class Sharded:
    """A `un.ShardedLoader` whose every pass is the next epoch, as loops over a DataLoader have it."""

    def __init__(self, dataset: Any, batch: int, comm: Any) -> None:
        self.dataset, self._passes = dataset, 0
        self._loader = un.ShardedLoader(dataset, comm, global_batch=batch, shuffle=False)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._passes += 1
        return self._loader.epoch(self._passes - 1)


def noise_of(pictures: Tensor, width: int) -> Tensor:
    """Pure: noise that depends on the sample alone, so that all ways of dividing a batch draw the same."""
    return torch.sin(1000.0 * pictures.flatten(1)[:, :width])[:, :, None, None]


def waves() -> Any:
    """Pure: what the example's other script writes, in small."""
    return np.sin((np.arange(30) + np.arange(0, 80, 10)[:, None]) / 5.0)


def run(program: Program, texts: dict[str, str], is_moved: bool) -> Found:
    """Collective when moved, blocking: the parameters of every optimiser that made a step, and the numbers of the test lines."""
    torch.set_default_dtype(torch.float32 if program.limit == FLOAT32_LIMIT else torch.float64)
    torch.manual_seed(SEED)
    write_text()
    found: Found = {}
    names: dict[str, Any] = {"__name__": "__main__", "noise_of": noise_of, "waves": waves}
    with recorded_steps(found), recorded_lines(found):
        code = compiled(program, next(iter(texts.values())))
        if is_moved:
            with un.connect() as comm:
                exec(code, {**names, "un": un, "comm": comm, "Sharded": lambda data, batch: Sharded(data, batch, comm)})
        else:
            with norms_of_parts(program.needs == NORM_OF_PARTS):
                exec(code, names)
    return found


def write_text() -> None:
    """Local: the three files of the language model."""
    random = np.random.default_rng(0)
    for part, num in (("train", 2000), ("valid", 300), ("test", 300)):
        words = [f"w{number}" for number in random.integers(0, 40, num)]
        with Path(f"{part}.txt").open("w", encoding="utf-8") as file:
            file.writelines(" ".join(words[at : at + 9]) + "\n" for at in range(0, num, 9))


@contextmanager
def recorded_steps(found: Found) -> Iterator[None]:
    """Local: notes the parameters of every optimiser before its first step, and at the end."""
    parameters: dict[int, Tensor] = {}

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for one in group["params"]:
                if id(one) not in parameters:
                    found[f"{BEFORE} {len(parameters)}"] = one.detach().numpy().copy()
                    parameters[id(one)] = one

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
    found.update({f"{WEIGHTS} {place}": one.detach().numpy().copy() for place, one in enumerate(parameters.values())})


@contextmanager
def recorded_lines(found: Found) -> Iterator[None]:
    """Local: notes the numbers in lines about all test data, but for times."""
    said = StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        sys.stdout.write(said.getvalue())
    lines = [re.sub(r"time: *\S+", "", line) for line in re.findall(TESTS, said.getvalue())]
    found["said"] = np.array([float(number) for line in lines for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line)])


@contextmanager
def norms_of_parts(is_on: bool) -> Iterator[None]:
    """Local: batch normalisation of each worker's part of a batch, which is what several workers compute, in one process."""
    whole = nn.BatchNorm2d.forward

    def of_parts(norm: nn.BatchNorm2d, samples: Tensor) -> Tensor:
        parts = [samples[cut(len(samples), NUM_PARTS, part)] for part in range(NUM_PARTS)] if norm.training else [samples]
        return torch.cat([whole(norm, part) for part in parts])

    if is_on:
        nn.BatchNorm2d.forward = of_parts  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.BatchNorm2d.forward = whole  # type: ignore[method-assign]
