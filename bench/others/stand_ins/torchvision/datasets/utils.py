"""Nothing is downloaded."""

from typing import Any


def download_and_extract_archive(*_: Any, **__: Any) -> None:
    raise OSError("a program wanted to download its data, which have a stand-in")
