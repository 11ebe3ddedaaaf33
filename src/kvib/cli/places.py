"""Checks of output paths, made before the work that fills them begins."""

import os
from pathlib import Path


def check_folder(path: Path, option: str) -> None:
    """Raise ValueError unless the path is a writable folder or one that can be made."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise ValueError(f"{option} {path}: {nearest} is a file; give the name of a folder")
    if not os.access(nearest, os.W_OK):
        raise ValueError(f"{option} {path}: {nearest} cannot be written to; give another folder")


def check_file(path: Path | None, option: str) -> None:
    """Raise ValueError unless the file can be written. None means that no file is written."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} {path} cannot be written; give another name")
