"""FEMNIST: handwritten characters by writer, and the paper's three digit versions, rebuilt."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvib.sim.data import Array, ClientData
from kvib.sim.task import Task
from kvib.types import IntArray

PARTS = [f"femnist_by_writer_part{k}.npz" for k in range(3)]
"""The files of all writers in `KVIB_DATA`."""
RECIPE_SEED = 2024
"""The seed of every version: which writers and which images it has."""
DIGITS = 10
"""Labels below this are digits. The others are letters."""
FEWEST_DIGITS = 60
"""Writers with fewer digits than this are left out of the digit versions."""


class Recipe(NamedTuple):
    """How a version is made of writers with at least 60 digits."""

    whole: int
    """The number of writers that keep all their digits."""
    cut: int
    """The number of writers that keep 2 to 4 digits."""
    share: float
    """The share of the training images that the whole writers hold."""


VERSIONS = {
    "v1": Recipe(223, 2008, 0.82),
    "v2": Recipe(246, 985, 0.90),
    "v3": Recipe(231, 231, 0.98),
}
"""The recipes of the paper's three versions."""
TEST_IMAGES = 8000
"""The number of test images of a digit version."""


def read_writers() -> ClientData:
    """All 817,851 images of 3,597 writers, from the folder `KVIB_DATA`, else from the hub."""
    folder = os.environ.get("KVIB_DATA")
    if folder is not None and all((Path(folder) / part).exists() for part in PARTS):
        return _from_files([Path(folder) / part for part in PARTS])
    return _from_hub(folder)


def _from_files(paths: list[Path]) -> ClientData:
    """The images of all parts, read part by part into one array, so that none is held twice."""
    labels, counts = zip(*(_labels(path) for path in paths), strict=True)
    ends = np.cumsum([len(y) for y in labels])
    x = np.empty((ends[-1], 28, 28), np.uint8)

    def fill(part: int) -> None:
        with np.load(paths[part]) as file:
            x[ends[part] - len(labels[part]) : ends[part]] = file["x"]

    with ThreadPoolExecutor(2) as pool:  # decompression leaves the interpreter free
        list(pool.map(fill, range(len(paths))))
    return ClientData(x, np.concatenate(labels), np.concatenate(counts))


def _labels(path: Path) -> tuple[Array, Array]:
    """The labels of a part, and the number of images of each writer."""
    with np.load(path) as file:
        return file["y"].astype(np.int64), file["count"]


def _from_hub(folder: str | None) -> ClientData:
    """The images of all writers from the Hugging Face hub."""
    where = f"KVIB_DATA={folder} does not hold {PARTS[0]}, …" if folder else "KVIB_DATA is not set"
    way_out = (
        f"{where}; set it to a folder with the FEMNIST files, or `pip install datasets` and go "
        "online to take flwrlabs/femnist from the Hugging Face hub"
    )
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"no FEMNIST data: {way_out}") from error
    try:
        rows: Any = datasets.load_dataset("flwrlabs/femnist", split="train")
    except Exception as error:  # the hub fails in many ways, and none of them is ours
        raise ValueError(f"the hub did not answer ({error}): {way_out}") from error
    return from_rows(rows["image"], rows["character"], rows["writer_id"])


def from_rows(images: Any, labels: Any, writers: Any) -> ClientData:
    """The rows of the hub's data set, one image each, as clients sorted by writer."""
    names, writer = np.unique(np.asarray(writers), return_inverse=True)
    order = np.argsort(writer, kind="stable")
    x = np.stack([np.asarray(images[int(i)], dtype=np.uint8) for i in order])
    return ClientData(
        x, np.asarray(labels, np.int64)[order], np.bincount(writer, minlength=len(names))
    )


def femnist(data: ClientData | None = None, writers: int | None = None) -> Task:
    """All characters, 62 classes, one client per writer. Every tenth image is for testing.

    Args:
        data: The writers' images. The default is all of them.
        writers: The number of writers to take, drawn once from a fixed seed. None means all.
    """
    data = read_writers() if data is None else data
    if writers is not None:
        rng = np.random.Generator(np.random.PCG64([RECIPE_SEED, writers]))
        chosen = np.sort(rng.choice(len(data), writers, replace=False))
        parts = [np.arange(data.starts[w], data.starts[w] + data.sizes[w]) for w in chosen]
        at = np.concatenate(parts)
        data = ClientData(data.x[at], data.y[at], data.sizes[chosen])
    position = np.arange(len(data.y)) - np.repeat(data.starts, data.sizes)
    is_test = position % 10 == 9
    sizes = data.sizes - data.sizes // 10
    train = ClientData(data.x[~is_test], data.y[~is_test], sizes)
    name = "femnist" if writers is None else f"femnist-{writers}"
    return Task(name, train, (data.x[is_test], data.y[is_test]), partial(cnn, 62), 62)


def digits(version: str, data: ClientData | None = None) -> Task:
    """The paper's FEMNIST v1, v2 or v3: 10 classes, and few writers with most of the images.

    The versions are rebuilt, since the paper's own files are not public. `whole` writers keep their
    digits and `cut` others keep 2 to 4 of theirs, so that the whole ones hold the stated share.
    Test images are of writers that are no clients. Writers and images are drawn once from a fixed
    seed.

    Args:
        version: "v1", "v2" or "v3".
        data: The writers' images. The default is all of them.
    """
    if version not in VERSIONS:
        raise ValueError(f"FEMNIST version {version!r} is not one of {', '.join(VERSIONS)}")
    recipe = VERSIONS[version]
    data = read_writers() if data is None else data
    # The digits of every writer.
    owner = np.repeat(np.arange(len(data)), data.sizes)
    at = np.flatnonzero(data.y < DIGITS)
    per_writer = np.bincount(owner[at], minlength=len(data))
    starts = np.cumsum(per_writer) - per_writer
    # Writers in random order: first the whole ones, then those that are cut.
    rng = np.random.Generator(np.random.PCG64([RECIPE_SEED, int(version[1:])]))
    writers = rng.permutation(np.flatnonzero(per_writer >= FEWEST_DIGITS))
    whole, cut = np.split(writers[: recipe.whole + recipe.cut], [recipe.whole])
    keep = _cut_sizes(int(per_writer[whole].sum()), recipe, rng)
    clients = [at[starts[w] : starts[w] + per_writer[w]] for w in whole]
    for w, n in zip(cut, keep, strict=True):
        clients.append(at[starts[w] + np.sort(rng.choice(per_writer[w], n, replace=False))])
    # Test images of the writers that are left.
    rest = np.concatenate(
        [at[starts[w] : starts[w] + per_writer[w]] for w in writers[len(clients) :]]
    )
    test = np.sort(rng.choice(rest, TEST_IMAGES, replace=False))
    index = np.concatenate(clients)
    train = ClientData(data.x[index], data.y[index], np.array([len(c) for c in clients]))
    return Task(f"femnist-{version}", train, (data.x[test], data.y[test]), partial(cnn, 10), 10)


def iid_digits(clients: int = 200, images: int = 60, data: ClientData | None = None) -> Task:
    """Digits dealt out at random, the same number to every client: clients that do not differ.

    Args:
        clients: The number of clients N.
        images: The number of images of each client.
        data: The writers' images. The default is all of them.
    """
    data = read_writers() if data is None else data
    rng = np.random.Generator(np.random.PCG64([RECIPE_SEED, clients, images]))
    at = rng.permutation(np.flatnonzero(data.y < DIGITS))
    if len(at) < clients * images + TEST_IMAGES:
        raise ValueError(f"{clients} clients with {images} digits each: there are only {len(at)}")
    own, rest = np.split(at[: clients * images + TEST_IMAGES], [clients * images])
    train = ClientData(data.x[own], data.y[own], np.full(clients, images))
    return Task("femnist-iid", train, (data.x[rest], data.y[rest]), partial(cnn, 10), 10)


def _cut_sizes(whole_images: int, recipe: Recipe, rng: np.random.Generator) -> IntArray:
    """2 to 4 images for each cut writer, with the sum that leaves the whole ones their share."""
    total = round(whole_images * (1 - recipe.share) / recipe.share)
    sizes = np.full(recipe.cut, 2)
    extra = min(max(total - 2 * recipe.cut, 0), 2 * recipe.cut)
    order = np.concatenate([rng.permutation(recipe.cut) for _ in range(2)])
    np.add.at(sizes, order[:extra], 1)
    return sizes


def cnn(classes: int) -> Any:
    """The CNN of the paper's experiments. Torch is imported only when it is made."""
    from kvib.sim.models import FemnistCNN

    return FemnistCNN(classes)
