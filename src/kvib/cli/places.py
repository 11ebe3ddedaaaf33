"""Where results shall go, looked at before the work begins that makes them."""

import os
from pathlib import Path


def check_folder(path: Path, option: str) -> None:
    """That it is a folder, or can be made."""
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {path}: {there} is a file; give the name of a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"{option} {path}: {there} cannot be written to; give another folder")


def check_file(path: Path | None, option: str) -> None:
    """That it can be written, if it is asked for."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{option} {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} {path} cannot be written; give another name")
