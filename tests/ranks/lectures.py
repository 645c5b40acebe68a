"""Where every block of code of the five lectures is, and how its file differs from the slide.

A folder has the code of its slides as text, `slides/*.txt`. Its page has a section for each file, which links the slide and shows
the difference: lines of code that are gone and lines that are new. Comments, docstrings and empty lines are no code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "lectures"

BLOCKS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("juelich", "1. init"): ("juelich/how_to.py",),
    ("juelich", "2. pin the GPU"): ("juelich/how_to.py",),
    ("juelich", "3. DistributedOptimizer"): ("juelich/how_to.py",),
    ("juelich", "4. BroadcastGlobalVariablesCallback"): ("juelich/how_to.py",),
    ("juelich", "5. checkpoints on rank 0"): ("juelich/how_to.py",),
    ("juelich", "practical: Indian Pines"): ("juelich/indian_pines.py",),
    ("mpcdf", "MNIST with Keras and Horovod, three slides"): ("mpcdf/keras_mnist.py",),
    ("mpcdf", "srun, mpirun, mpiexec, orterun, horovodrun"): ("mpcdf/run.sh", "mpcdf/job.sbatch"),
    ("flatiron", "TrainingDriver.py on CIFAR-10"): ("flatiron/train.sh", "flatiron/cifar10.py", "flatiron/cifar10_arch.json"),
    ("flatiron", "the MNIST module, two slides"): ("flatiron/example_mnist.py", "flatiron/h5_files.py"),
    ("flatiron", "OptimizationDriver.py"): ("flatiron/tune.sh",),
    ("flatiron", "--monitor, --timeline, --checkpoint"): ("flatiron/options.sh",),
    ("biohpc", "conda environment"): ("biohpc/environment.sh",),
    ("biohpc", "two commands"): ("biohpc/commands.sh", "biohpc/my_dl_model.py", "biohpc/my_dl_model_horovod.py"),
    ("biohpc", "1. init"): ("biohpc/tensorflow_how_to.py", "biohpc/tensorflow2_how_to.py"),
    ("biohpc", "2. pin the GPU"): ("biohpc/tensorflow_how_to.py", "biohpc/tensorflow2_how_to.py"),
    ("biohpc", "3. DistributedOptimizer, scaled rate"): ("biohpc/tensorflow_how_to.py", "biohpc/tensorflow2_how_to.py"),
    ("biohpc", "4. BroadcastGlobalVariablesHook"): ("biohpc/tensorflow_how_to.py", "biohpc/tensorflow2_how_to.py"),
    ("biohpc", "5. checkpoints on rank 0"): ("biohpc/tensorflow_how_to.py", "biohpc/tensorflow2_how_to.py"),
    ("biohpc", "Singularity, two blocks"): ("biohpc/container.sh",),
    ("biohpc", "submit the job"): ("biohpc/job.sbatch",),
    ("cscs", "MirroredStrategy"): ("cscs/mirrored.py", "cscs/mirrored_workers.py"),
    ("cscs", "TF_CONFIG"): ("cscs/tf_config.py", "cscs/tf_config.sh"),
    ("cscs", "SlurmClusterResolver"): ("cscs/slurm_resolver.py",),
    ("cscs", "MultiWorkerMirroredStrategy with SLURM"): ("cscs/slurm.py", "cscs/job.sbatch"),
    ("cscs", "SyncBatchNormalization"): ("cscs/sync_batch_norm.py",),
}
"""Lecture and block -> its files."""

BESIDE = ("mnist.py", "mpcdf/mnist.py", "cscs/mnist.py", "flatiron/mnist.py", "cscs/training.py")
"""Files that are no blocks: what the slides leave to the reader."""


@dataclass(frozen=True)
class Row:
    """One block as the overview has it."""

    lecture: str
    block: str
    files: tuple[str, ...]
    difference: str

    @property
    def number(self) -> str:
        """Of a block that shares its file with others: "2" of "2. pin the GPU"."""
        found = re.match(r"\d+(?=\. )", self.block)
        return found[0] if found else ""


def rows_of_the_overview() -> list[Row]:
    """Local: the table of examples/lectures/README.md: lecture, block, file, runs with, difference."""
    rows = []
    for line in (FOLDER / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and "](" in cells[2]:
            lecture = re.sub(r"\[(.*)\]\(.*\)", r"\1", cells[0])
            rows.append(Row(lecture, cells[1], tuple(re.findall(r"\]\((.*?)\)", cells[2])), cells[4]))
    return rows


@dataclass(frozen=True)
class Section:
    """What a page tells of a file."""

    slide: Path | None
    """None: the slides do not have it."""
    shown: tuple[str, ...]
    """The difference."""


def sections(folder: str) -> dict[str, Section]:
    """Local: file -> what the page of its folder tells."""
    found = {}
    for part in (FOLDER / folder / "README.md").read_text().split("\n## ")[1:]:
        title, text = part.split("\n", 1)
        slide = re.search(r"\]\((slides/.*?)\)", text)
        shown = re.search(r"```diff\n(.*?)```", text, re.DOTALL)
        assert (slide is None) == (shown is None) == ("Not on the slides" in text), title
        place = FOLDER / folder / slide[1] if slide else None
        found[f"{folder}/{title}"] = Section(place, tuple(shown[1].splitlines()) if shown else ())
    return found


def code(text: str, number: str = "") -> list[str]:
    """Pure: the lines of code; with a number those of one block, from its comment `# 2. ...` to the next empty line."""
    if number:
        found = re.search(rf"^# {number}\. .*\n((?:.+\n)*)", text, re.MULTILINE)
        assert found is not None, f"no comment begins with `# {number}. `"
        text = found[1]
    text = re.sub(r'\A""".*?"""\n', "", text, flags=re.DOTALL)
    return [
        line for line in text.splitlines() if line.strip() and (line.startswith("#SBATCH") or not line.lstrip().startswith("#"))
    ]


def difference(slide: Sequence[str], file: Sequence[str]) -> list[str]:
    """Pure: all lines that are gone or new, each group between the line before and the line after it."""
    lines = list(unified_diff(slide, file, n=1, lineterm=""))[2:]  # without the names of the files
    return ["@@" if line.startswith("@@") else line for line in lines][1:]


def counted(slide: Sequence[str], file: Sequence[str]) -> str:
    """Pure: how many lines are gone and how many are new, as the overview has it."""
    lines = difference(slide, file)
    gone, new = (sum(line.startswith(sign) for line in lines) for sign in "-+")
    return f"-{gone} +{new}" if gone or new else "none"
