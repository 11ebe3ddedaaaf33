"""Documents, read from the folder `KVIB_DATA`, else from the hub."""

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TextRows = dict[str, list[Any]]
"""The columns of a table, by name."""

AG_NEWS, REUTERS, SHAKESPEARE = (
    f"{name}.parquet" for name in ("agnews_partial", "reuters21578", "shakespeare_by_role")
)
"""The files in `KVIB_DATA`."""
HUB_DOCUMENTS = 60_000
"""The number of documents of CC-News that are taken from the hub, of its 700,000. It is more than
enough."""
SPLITS = ("train", "test")
"""The parts of AG News."""


class Labelled(NamedTuple):
    """Documents with a class each."""

    texts: list[str]
    """The documents."""
    labels: list[int]
    """The class of each document."""


def ag_news() -> tuple[Labelled, Labelled]:
    """News in four classes, for training and for testing."""
    rows = local(AG_NEWS)
    if rows is not None:
        at = {split: [k for k, s in enumerate(rows["split"]) if s == split] for split in SPLITS}
        return _labelled(rows, at["train"]), _labelled(rows, at["test"])
    parts = [from_hub("fancyzhx/ag_news", split, AG_NEWS) for split in SPLITS]
    train, test = (_labelled(part, range(len(part["text"]))) for part in parts)
    return train, test


def _labelled(rows: TextRows, at: Sequence[int]) -> Labelled:
    """The documents of these rows that are not empty."""
    kept = [k for k in at if rows["text"][k].strip()]
    return Labelled([rows["text"][k] for k in kept], [int(rows["label"][k]) for k in kept])


def newswire() -> list[str]:
    """News stories: Reuters of 1987 and AG News from `KVIB_DATA`, else CC-News from the hub."""
    reuters = local(REUTERS)
    if reuters is not None:
        pairs = zip(reuters["title"], reuters["body"], strict=True)
        stories = ["\n".join(part for part in pair if part) for pair in pairs]
        if local_file(AG_NEWS) is not None:
            stories += ag_news()[0].texts
    else:
        split = f"train[:{HUB_DOCUMENTS}]"
        stories = from_hub("vblagoje/cc_news", split, REUTERS)["text"]
    return [story for story in stories if story.strip()]


def shakespeare() -> dict[str, str]:
    """The lines of each speaking role of 37 plays, by "play: role"."""
    rows = local(SHAKESPEARE)
    if rows is None:
        raise ValueError(
            f"no Shakespeare by role: {_where(SHAKESPEARE)}; set it to a folder with that file "
            "(columns play, speaker, text)"
        )
    speeches: dict[str, list[str]] = {}
    for play, speaker, text in zip(rows["play"], rows["speaker"], rows["text"], strict=True):
        speeches.setdefault(f"{play}: {speaker}", []).append(text)
    return {role: "\n".join(lines) for role, lines in sorted(speeches.items())}


def sources(name: str) -> tuple[str, ...]:
    """The sources that tokens of this file may come from, as parts of their names in the cache.

    Without `KVIB_DATA`, tokens that another machine made of it may stand in for the hub.
    """
    if local_file(name) is not None:
        return ("local",)
    return ("hub",) if os.environ.get("KVIB_DATA") else ("hub", "local")


def checksums(first: str, *others: str) -> dict[str, int]:
    """Checksums of files in `KVIB_DATA`, by name. Empty if the first file is not there."""
    if local_file(first) is None:
        return {}
    files = {name: local_file(name) for name in (first, *others)}
    return {name: zlib.crc32(file.read_bytes()) for name, file in files.items() if file}


def local_file(name: str) -> Path | None:
    """The path of a file in `KVIB_DATA`. None if it is not there."""
    folder = os.environ.get("KVIB_DATA")
    file = None if folder is None else Path(folder) / name
    return file if file is not None and file.exists() else None


def local(name: str) -> TextRows | None:
    """The columns of a file in `KVIB_DATA`. None if it is not there."""
    file = local_file(name)
    if file is None:
        return None
    try:
        import polars
    except ImportError as error:
        raise ValueError(
            f"reading {name} needs polars; pip install '.[text]' in a clone of kvib"
        ) from error
    columns: TextRows = polars.read_parquet(file).to_dict(as_series=False)
    return columns


def from_hub(name: str, split: str, file: str, load: Callable[..., Any] | None = None) -> TextRows:
    """The columns of a data set of the Hugging Face hub.

    Args:
        name: The name of the data set.
        split: The part of the data set.
        file: The file that was looked for before, for messages.
        load: A function to use instead of `datasets.load_dataset`.
    """
    way_out = (
        f"{_where(file)}; set it to a folder with that file, or `pip install datasets` and go "
        f"online to take {name} from the Hugging Face hub"
    )
    if load is None:
        try:
            import datasets
        except ImportError as error:
            raise ValueError(f"no {name}: {way_out}") from error
        load = datasets.load_dataset
    try:
        rows: Any = load(name, split=split)
    except Exception as error:  # the hub fails in many ways, and none of them is ours
        raise ValueError(f"the hub did not answer ({error}): {way_out}") from error
    return {column: list(rows[column]) for column in rows.column_names}


def _where(file: str) -> str:
    """The reason why a file of `KVIB_DATA` was not found, for messages."""
    folder = os.environ.get("KVIB_DATA")
    return f"KVIB_DATA={folder} does not hold {file}" if folder else "KVIB_DATA is not set"
