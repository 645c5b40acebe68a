"""Pictures in files: a folder for each class, or a table (CSV) with a row for each picture."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from unisono.data.batch import batch_of
from unisono.data.source import Indices, Source
from unisono.data.sources.file_list import PathName, missing_key, names_sha256, require_file, unreadable
from unisono.data.sources.optional_packages import load
from unisono.data.sources.table_labels import labels_as_numbers
from unisono.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
DEEP: Mapping[str, type[np.number[Any]]] = MappingProxyType({"I;16": np.uint16, "I": np.int32, "F": np.float32})
"""Pillow's modes of more than 8 bits -> type of their pixels."""
Row: TypeAlias = Mapping[str, str]


class Images(Source):
    """Pictures by path, read and decoded as they are asked for: the base class of `ImageFolder` and `ImageTable`.

    A picture is uint8 of shape (channels, rows, columns); deeper ones are uint16, int32 or float32, by `mode`. Local.

    Args:
        paths: The files.
        labels: The target of each picture, or None.
        groups: The group of each picture, or None.
        size: Rows and columns to which all are brought, one number for squares, or None if all have one size.
        mode: Pillow's mode: "RGB", "L", and so on; "I;16", "I" or "F" for pictures deeper than 8 bits.
        classes: The names of the classes, in the order of their numbers.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: npt.NDArray[Any] | None = None,
        groups: npt.NDArray[Any] | None = None,
        size: int | tuple[int, int] | None = None,
        mode: str = "RGB",
        classes: Sequence[str] = (),
    ) -> None:
        for what, given in (("labels", labels), ("groups", groups)):
            if given is not None and len(given) != len(paths):
                raise UsageError(f"there are {len(paths)} pictures but {len(given)} {what}; give one for each")
        if not paths:
            raise UsageError("there are no pictures; give at least one")
        self.paths = tuple(paths)
        self.size = (size, size) if isinstance(size, int) else size
        self.mode = mode
        self.classes = tuple(classes)
        """Names of the classes; a target is a place in this tuple. Empty where labels are numbers."""
        self._labels = labels
        self._groups = groups

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, indices: Indices) -> Any:
        pictures = [self._read_picture(self.paths[int(index)]) for index in indices]
        first = pictures[0].shape if pictures else ()
        for index, picture in zip(indices, pictures, strict=True):
            if picture.shape != first:
                raise UsageError(
                    f"{self.paths[int(index)]} has {picture.shape[1:]} rows and columns, but {self.paths[int(indices[0])]} has "
                    f"{first[1:]}; give size=(rows, columns) to resize all pictures"
                )
        return batch_of(np.stack(pictures), None if self._labels is None else self._labels[indices])

    def targets(self) -> npt.NDArray[Any] | None:
        return self._labels

    def groups(self) -> npt.NDArray[Any] | None:
        return self._groups

    def describe(self) -> Mapping[str, Any]:
        folders = sorted({str(path.parent) for path in self.paths})
        facts = {
            "folders": folders,
            "names_sha256": names_sha256(self.paths),
            "classes": list(self.classes),
            "size": self.size,
            "mode": self.mode,
        }
        return {**super().describe(), **facts}

    def _read_picture(self, path: Path) -> npt.NDArray[Any]:
        """Returns this picture as (channels, height, width), in the mode and size of the source."""
        image = load("PIL.Image", "pictures")
        try:
            with image.open(path) as opened:
                is_deep = opened.mode.startswith(("I", "F"))
                picture = image.fromarray(self._deep_pixels(path, opened)) if is_deep else opened.convert(self.mode)
        except (OSError, SyntaxError, ValueError) as error:
            raise unreadable(path, "a picture", error) from None
        if self.mode in DEEP and not is_deep:
            raise UsageError(f'{path} has 8 bits a channel, but mode={self.mode!r} is for deeper pictures; give mode="L" or "RGB"')
        if self.size is not None:
            picture = picture.resize(self.size[::-1], image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=DEEP.get(self.mode, np.uint8))
        return np.ascontiguousarray(np.moveaxis(pixels, 2, 0)) if pixels.ndim == 3 else pixels[None]

    def _deep_pixels(self, path: Path, opened: Any) -> npt.NDArray[Any]:
        """Returns the pixels of a picture deeper than 8 bits; refuses a mode that would clip or round them, as Pillow does."""
        stored = np.asarray(opened)
        kind = DEEP.get(self.mode)
        if kind is not None:
            with np.errstate(invalid="ignore"):
                pixels: npt.NDArray[Any] = stored.astype(kind)
            if np.array_equal(pixels, stored, equal_nan=True):
                return pixels
        own = "I;16" if opened.mode.startswith("I;16") else opened.mode
        raise UsageError(
            f"{path} is deeper than 8 bits (Pillow's mode {own!r}), and mode={self.mode!r} would change its pixels; "
            f"give mode={own!r}, which reads them as {np.dtype(DEEP[own])}, or convert the pictures"
        )


class ImageFolder(Images):
    """Pictures in a folder with a sub-folder for each class.

    A sample is uint8 of shape (channels, rows, columns), its target the number of the class, in the order of the names.
    Sub-folders of a class are searched too. Pictures are decoded when they are read, and not turned as their EXIF data say.
    Needs the package Pillow. Local.

    The suffix of a picture is .jpg, .jpeg, .png, .bmp, .gif, .webp, .tif, .tiff, .ppm or .pgm; other files are ignored. A
    class without a picture is refused, and so are pictures of different sizes if `size` is not given, and damaged ones when
    they are read.

    Example:
        from pathlib import Path
        import numpy as np
        from PIL import Image
        import unisono as un

        for name in ("benign", "malignant"):
            Path("train", name).mkdir(parents=True)
            Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(f"train/{name}/1.png")
        source = un.ImageFolder("train", size=32)
        source.classes, source.read([0])[0].shape  # -> (('benign', 'malignant'), (1, 3, 32, 32))

    Args:
        folder: The folder that holds a sub-folder for each class.
        size: Rows and columns to which all pictures are brought, as a pair, or one number for squares; None if all have one
            size.
        mode: Pillow's mode: "RGB" for three channels, "L" for one grey channel; "I;16", "I" or "F" for the full depth of grey
            pictures with 16 or 32 bits, which the others refuse.
        classes: The names of the classes in another order, or only some of them; use the same for training and test. A class
            may have no sub-folder if all that are here are named.
    """

    def __init__(
        self, folder: PathName, size: int | tuple[int, int] | None = None, mode: str = "RGB", classes: Sequence[str] | None = None
    ) -> None:
        root = require_file(Path(folder).expanduser(), "a folder of pictures", folders=True)
        if not root.is_dir():
            raise UsageError(f"{root} is a file; give the folder that holds a sub-folder for each class")
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        if not found:
            raise UsageError(f"{root} has no sub-folders; make one for each class, or use ImageTable with a CSV file")
        names = list(classes) if classes is not None else found
        for name in names:
            # Where every sub-folder is named, the others are classes of which this part has no sample.
            if name not in found and not set(found) <= set(names):
                raise missing_key(name, found, f"the folder {root}")
        paths, labels = [], []
        for number, name in enumerate(names):
            if name not in found:
                continue
            inside = sorted(path for path in (root / name).rglob("*") if path.suffix.lower() in SUFFIXES)
            if not inside:
                raise UsageError(f"{root / name} holds no picture ({', '.join(SUFFIXES)}); remove it or fill it")
            paths += inside
            labels += [number] * len(inside)
        super().__init__(paths, np.array(labels, dtype=np.int64), None, size, mode, names)


class ImageTable(Images):
    """Pictures that a table (CSV) lists, with a row for each picture.

    Columns are named by the header of the table. If all labels are whole numbers they are class numbers; if all are numbers
    they are float32 values; otherwise they are names of classes, numbered in sorted order unless `classes` is given. Needs
    the package Pillow. Local.

    Every picture must be there. An unknown column, a label that is not in `classes`, and a table without rows are refused.
    So are rows without a label (an empty cell, "NA", "nan") and columns that mix numbers and text, unless `classes` names
    them.

    Example:
        from pathlib import Path
        import numpy as np
        from PIL import Image
        import unisono as un

        for name in ("a", "b"):
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(f"{name}.png")
        Path("images.csv").write_text("id,diagnosis,patient\\na,nevus,p1\\nb,melanoma,p2\\n")
        source = un.ImageTable("images.csv", file="id", suffix=".png", label="diagnosis", group="patient")
        source.classes, source.targets().tolist()  # -> (('melanoma', 'nevus'), [1, 0])

    Args:
        table: The CSV file; its first line holds the names of the columns.
        file: The column with the name of the picture.
        label: The column of the target, or a function of a row (a dict of texts), for example `lambda row: row["dx"] ==
            "mel"`; left out, the samples have no target.
        group: The column of the patient, lesion, and so on, for `how="group"` of `un.split`.
        folder: Where the pictures lie; left out, the folder of the table.
        suffix: What is added to the name of each picture, for example ".jpg".
        size: Rows and columns to which all pictures are brought, as a pair, or one number for squares; None if all have one
            size.
        mode: Pillow's mode: "RGB" for three channels, "L" for one grey channel; "I;16", "I" or "F" for the full depth of grey
            pictures with 16 or 32 bits, which the others refuse.
        classes: The names of the classes in the order of their numbers.
    """

    def __init__(
        self,
        table: PathName,
        file: str,
        label: str | Callable[[Row], Any] | None = None,
        group: str | None = None,
        folder: PathName | None = None,
        suffix: str = "",
        size: int | tuple[int, int] | None = None,
        mode: str = "RGB",
        classes: Sequence[str] | None = None,
    ) -> None:
        path = require_file(Path(table).expanduser(), "a table of pictures")
        with path.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text)
            columns, rows = list(reader.fieldnames or ()), list(reader)
        for column in (file, label, group):
            if isinstance(column, str) and column not in columns:
                raise missing_key(column, columns, f"the columns of {path}")
        if not rows:
            raise UsageError(f"{path} has a header but no rows; give at least one picture")
        root = Path(folder).expanduser() if folder is not None else path.parent
        paths = [root / f"{row[file]}{suffix}" for row in rows]
        _expect_all(paths, path)
        labels, names = (
            (None, ()) if label is None else labels_as_numbers([_label_value(row, label) for row in rows], classes, path)
        )
        groups = None if group is None else np.array([row[group] for row in rows])
        super().__init__(paths, labels, groups, size, mode, names)
        self.table = path

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "table": str(self.table)}


def _label_value(row: Row, label: str | Callable[[Row], Any]) -> Any:
    """Returns the label of this row of the table: its column of this name, or what the function makes of it."""
    return row[label] if isinstance(label, str) else label(row)


def _expect_all(paths: Sequence[Path], table: Path) -> None:
    """Refuses missing files; lists each folder once instead of checking each file, which is cheap on parallel file systems."""
    there = {
        folder: {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        for folder in {path.parent for path in paths}
    }
    absent = [path for path in paths if path.name not in there[path.parent]]
    if absent:
        raise UsageError(
            f"{len(absent)} of {len(paths)} pictures of {table} do not exist, e.g. {absent[0]}; "
            'check folder= and suffix= (e.g. suffix=".jpg")'
        )
