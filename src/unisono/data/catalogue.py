"""Data sets that are known by name: what they are, where to get them, and whether the files on this machine are the right ones.

A data set lies in the folder ROOT/NAME. A checksum stands here only where it was published or is in wide use; sizes are about right
and only shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unisono.cluster.resolve import environment
from unisono.errors import UsageError, unknown_name

ROOT_VARIABLE = "UNISONO_DATA"

MISSING, CHANGED, UNKNOWN, RIGHT = "missing", "changed", "no checksum known", "right"
"""States of a file: not there; not the published one; there, but no checksum to compare; byte for byte the right one."""


@dataclass(frozen=True)
class File:
    """One file of a data set, with the addresses to try in turn. Without an address a person has to fetch it."""

    name: str
    num_bytes: int | None = None
    md5: str | None = None
    urls: tuple[str, ...] = ()

    def state(self, folder: Path) -> str:
        """Local, blocking for one read of the file: returns MISSING, CHANGED, UNKNOWN or RIGHT."""
        path = folder / self.name
        if not path.is_file():
            return MISSING
        if self.md5 is None:
            return UNKNOWN
        return RIGHT if md5_of(path) == self.md5 else CHANGED


@dataclass(frozen=True)
class DataSet:
    """One entry of the catalogue."""

    name: str
    what: str
    num_samples: str
    licence: str
    page: str
    files: tuple[File, ...] = ()
    unpack: Mapping[str, str] = field(default_factory=dict)
    """Archive -> the folder that it unpacks to."""
    note: str = ""

    @property
    def embedded(self) -> bool:
        """Whether it is part of the package, so that nothing has to be fetched."""
        return not self.files

    @property
    def num_bytes(self) -> int | None:
        """Size of all files in bytes; None if that of one is not known."""
        sizes = [file.num_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def download_state(self, root: Path) -> str:
        """Local: whether its files are in `root`: `yes`, `partly` or `no`. Quick: only the names of files are compared."""
        there = [(root / self.name / name).exists() for name in self.needed()]
        return "yes" if all(there) else "partly" if any(there) else "no"

    def needed(self) -> tuple[str, ...]:
        """Returns the names of the files and unpacked folders."""
        return (*(file.name for file in self.files), *self.unpack.values())


def default_root(environ: Mapping[str, str]) -> Path:
    """Pure: returns the folder of data sets where no other one is given; the caller passes the environment."""
    if given := environ.get(ROOT_VARIABLE):
        return Path(given).expanduser()
    return Path(environ.get("HOME", "~")).expanduser() / ".cache" / "unisono" / "data"


def find(name: str) -> DataSet:
    """Pure: returns the entry of this name; refuses unknown names."""
    known = [entry.name for entry in CATALOGUE]
    if name not in known:
        raise unknown_name("data set", name, known)
    return CATALOGUE[known.index(name)]


def locate(name: str, root: Path | str | None = None) -> Path:
    """Returns the folder of a known data set, once its files are complete.

    `unisono data` lists the names, and `unisono data get NAME` fetches a data set. Where a checksum was published, every
    file is compared with it. If something is missing or differs, `UsageError` says what, and which command gets it.
    "digits" is part of the package and has no folder: use `un.digits()`. Nothing is downloaded. Local, blocking for one
    read of the files.

    Example:
        import unisono as un

        try:
            folder = un.locate("mnist", root="data")
            images = un.Idx(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
        except un.UsageError as error:
            print(error)  # mnist is not in data/mnist (... missing); run: unisono data get mnist --root data

    Args:
        name: A name from `unisono data`, for example "mnist"; a wrong one is refused with the nearest names.
        root: The folder that holds the data sets; left out, that of UNISONO_DATA, else ~/.cache/unisono/data.
    """
    root = default_root(environment()) if root is None else root
    entry = find(name)
    if entry.embedded:
        raise UsageError(f"{name} is part of the package and has no folder; {entry.note}")
    folder = Path(root).expanduser() / name
    states = {file.name: file.state(folder) for file in entry.files}
    if changed := [file for file, state in states.items() if state == CHANGED]:
        raise UsageError(
            f"{folder / changed[0]} is not the published file (its md5 differs); remove it and run: {_how_to_get(entry, root)}"
        )
    absent = [needed for needed in entry.needed() if not (folder / needed).exists()]
    if absent:
        raise UsageError(f"{name} is not in {folder} ({', '.join(absent)} missing); run: {_how_to_get(entry, root)}")
    return folder


def md5_of(path: Path) -> str:
    """Local, blocking for one read: returns the MD5 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _how_to_get(entry: DataSet, root: Path | str) -> str:
    """Returns the command that gets this data set, for a message."""
    command = f"unisono data get {entry.name} --root {root}"
    if all(file.urls for file in entry.files):
        return f"{command} (needs internet access)"
    return f"unisono data show {entry.name} (it has to be downloaded by hand)"


_IDX = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


def _idx_files(sizes: tuple[int, ...], md5s: tuple[str, ...], mirrors: tuple[str, ...]) -> tuple[File, ...]:
    """Returns the four files of a data set of MNIST's kind, each with its size, checksum and addresses."""
    return tuple(
        File(name, size, md5, tuple(f"{mirror}/{name}" for mirror in mirrors))
        for name, size, md5 in zip(_IDX, sizes, md5s, strict=True)
    )


_SCENES = "https://www.ehu.eus/ccwintco/index.php/Hyperspectral_Remote_Sensing_Scenes"
_SCENE_FILES = "https://www.ehu.eus/ccwintco/uploads"

CATALOGUE = (
    DataSet(
        "digits",
        "handwritten digits, 8x8 grey, 10 classes",
        "1,797",
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/80",
        note="use un.digits()",
    ),
    DataSet(
        "mnist",
        "handwritten digits, 28x28 grey, 10 classes",
        "60,000 + 10,000",
        "none stated",
        "http://yann.lecun.com/exdb/mnist/",
        _idx_files(
            (9912422, 28881, 1648877, 4542),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        ),
    ),
    DataSet(
        "fashion_mnist",
        "articles of clothing, 28x28 grey, 10 classes",
        "60,000 + 10,000",
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        _idx_files(
            (26421880, 29515, 4422102, 5148),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
        ),
    ),
    DataSet(
        "cifar10",
        "small photographs, 32x32 colour, 10 classes",
        "50,000 + 10,000",
        "none stated",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (
            File(
                "cifar-10-python.tar.gz",
                170498071,
                "c58f30108f718f92721af3b95e74349a",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            ),
        ),
        {"cifar-10-python.tar.gz": "cifar-10-batches-py"},
    ),
    DataSet(
        "cifar100",
        "small photographs, 32x32 colour, 100 classes",
        "50,000 + 10,000",
        "none stated",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (
            File(
                "cifar-100-python.tar.gz",
                169001437,
                "eb9058c3a382ffc7106e4002c42a8d85",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            ),
        ),
        {"cifar-100-python.tar.gz": "cifar-100-python"},
    ),
    DataSet(
        "sat6",
        "airborne patches, 28x28, 4 bands, 6 classes",
        "324,000 + 81,000",
        "see its page",
        "https://www.kaggle.com/datasets/crawford/deepsat-sat6",
        (File("sat-6-full.mat"),),
        note="Kaggle requires an account: download sat-6-full.mat from the page in a browser and put it into the folder",
    ),
    DataSet(
        "indian_pines",
        "hyperspectral scene, 145x145, 200 bands, 16 classes",
        "10,249 labelled pixels",
        "CC BY 3.0",
        _SCENES,
        (
            File(
                "Indian_pines_corrected.mat",
                5950000,
                "66dbc9f4a9b7c9b1445f60a87b505101",
                (f"{_SCENE_FILES}/6/67/Indian_pines_corrected.mat",),
            ),
            File("Indian_pines_gt.mat", 1125, "9414943dac1d80faaa9165c8b460510c", (f"{_SCENE_FILES}/c/c4/Indian_pines_gt.mat",)),
        ),
        note="Baumgardner, Biehl and Landgrebe 2015, doi:10.4231/R7RX991C; re-saved copies have other checksums",
    ),
    DataSet(
        "pavia_university",
        "hyperspectral scene, 610x340, 103 bands, 9 classes",
        "42,776 labelled pixels",
        "none stated",
        _SCENES,
        (
            File("PaviaU.mat", None, "165a3c7488995f54a19add47c7eed4cd", (f"{_SCENE_FILES}/e/ee/PaviaU.mat",)),
            File("PaviaU_gt.mat", None, "b8c3ba44b077c26e24220463aa855bd3", (f"{_SCENE_FILES}/5/50/PaviaU_gt.mat",)),
        ),
    ),
    DataSet(
        "hippocampus",
        "MRI volumes of about 36x50x37, 2 structures to segment",
        "260 + 130 unlabelled",
        "CC BY-SA 4.0",
        "http://medicaldecathlon.com/",
        (
            File(
                "Task04_Hippocampus.tar",
                28400000,
                "9d24dba78a72977dbd1d2e110310f31b",
                ("https://msd-for-monai.s3-us-west-2.amazonaws.com/Task04_Hippocampus.tar",),
            ),
        ),
        {"Task04_Hippocampus.tar": "Task04_Hippocampus"},
        note="task 4 of the Medical Segmentation Decathlon; labels 0 background, 1 anterior, 2 posterior",
    ),
    DataSet(
        "isic_2020",
        "dermatoscopic photographs, benign or malignant, 2,056 patients",
        "33,126",
        "CC BY-NC 4.0",
        "https://challenge2020.isic-archive.com/",
        (
            File(
                "ISIC_2020_Training_GroundTruth.csv",
                2000000,
                None,
                ("https://isic-challenge-data.s3.amazonaws.com/2020/ISIC_2020_Training_GroundTruth.csv",),
            ),
            File(
                "ISIC_2020_Training_JPEG.zip",
                23_000_000_000,
                None,
                ("https://isic-challenge-data.s3.amazonaws.com/2020/ISIC_2020_Training_JPEG.zip",),
            ),
        ),
        {"ISIC_2020_Training_JPEG.zip": "train"},
        note="split by patient_id: photographs of one patient look alike",
    ),
)
"""All data sets, in the order in which they are shown: small ones first."""
