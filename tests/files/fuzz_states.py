"""Damage state files of every kind and read them: each is refused, or says the same.

    python tests/files/fuzz_states.py --mutations 7500 --out out/fuzz

Files of this version and of earlier ones, checkpoints and prepared tasks. What is neither refused
nor identical is kept under `--out`, and the command fails.
"""

import argparse
import io
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import IDENTICAL, OF_BYTES, REFUSED, Tally, fingerprint, generator, outcome

import kvib
from kvib.sim import LinearEngine, LocalSGD, ServerSGD, Simulation, prepared, records, synthetic

FIXTURES = Path(__file__).parents[1] / "fixtures"
WEIGHTS = np.arange(1.0, 7.0)


# Damage to a directory: entries that are lost, hidden, renamed or there twice.


def _entries(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def _zipped(entries):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in entries:
            archive.writestr(name, content)
    return file.getvalue()


def dropped(data, rng):
    """An archive without one of its entries, or some of the last."""
    entries = _entries(data)
    at, many = int(rng.integers(len(entries))), bool(rng.integers(2))
    return _zipped(entries[:at] + ([] if many else entries[at + 1 :]))


def renamed(data, rng):
    """An entry with another name, or two that changed theirs."""
    entries = _entries(data)
    a, b = rng.integers(len(entries), size=2)
    names = [name for name, _ in entries]
    if rng.integers(2):
        names[a] = f"more.{names[a]}"
    else:
        names[a], names[b] = names[b], names[a]
    return _zipped(list(zip(names, (content for _, content in entries), strict=True)))


def doubled(data, rng):
    """An entry that is there twice, with its own content or another's."""
    entries = _entries(data)
    a, b = rng.integers(len(entries), size=2)
    return _zipped([*entries, (entries[a][0], entries[b][1])])


def hidden(data, rng):
    """A directory in which the comment of one entry swallows some that follow."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [info.filename for info in archive.infolist()]
        at = archive.start_dir
    starts = []
    for _ in names:
        starts.append(at)
        at += 46 + sum(struct.unpack_from("<3H", data, at + 28))
    starts.append(at)
    first = int(rng.integers(len(names)))
    last = int(rng.integers(first, len(names)))
    broken = bytearray(data)
    struct.pack_into("<H", broken, starts[first] + 32, starts[last + 1] - starts[first + 1])
    return bytes(broken)


OF_DIRECTORIES = (dropped, renamed, doubled)


@dataclass
class Subject:
    """A file, what it says, and how to read that."""

    name: str
    data: bytes
    read: Any
    damage: tuple[Any, ...] = (*OF_BYTES, hidden, *OF_DIRECTORIES)

    def said(self, path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.read(path)


def _sampler(path):
    return fingerprint(kvib.Sampler.load(path).packed())


def _play(sampler, rounds=4, step=False, **options):
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        cohort = sampler.draw(**options)
        if step:
            sampler.step(cohort, rng.normal(size=(len(cohort), 5)))
        else:
            sampler.update(cohort, rng.lognormal(size=len(cohort)))
    return sampler


def _changed(sampler):
    sampler.leave(["b"])
    sampler.join([2.0], keys=["zoë"], cost=[1.5])
    return sampler


def samplers():
    """One of every kind of part that a state file can have."""
    costs = {"keys": list("abcdef"), "cool_down": 1, "cost": np.linspace(0.5, 2, 6)}
    rates = {"response": kvib.EstimatedRate(), "availability": kvib.EstimatedRate(3.0)}
    known = {"response": np.linspace(0.5, 1, 6), "variables": WEIGHTS[:, None] % 3}
    groups = kvib.Difference(kvib.GroupMeans(2))
    entries = kvib.Difference(kvib.LargestEntries(3))
    uniform, indexed = kvib.Uniform(), kvib.KVib(mix=0.3, by_weight=True)
    yield "keys-cost-index", _changed(_play(kvib.Sampler(kvib.KVib(), WEIGHTS, 2.0, **costs)))
    yield "recommended", _play(kvib.recommended(WEIGHTS, 2), step=True)
    yield "remember", _play(kvib.recommended(WEIGHTS, 2, remember=True), step=True)
    yield "rates", _play(kvib.Sampler(kvib.Forecast(), WEIGHTS, 2, **rates), available=np.arange(5))
    yield "known-variables", _play(kvib.Sampler(kvib.Vrb(), WEIGHTS, 2, kvib.balanced, **known))
    yield "groups", _play(kvib.Sampler(kvib.Avare(), WEIGHTS, 2, estimator=groups), step=True)
    yield "entries", _play(kvib.Sampler(uniform, WEIGHTS, 2, estimator=entries), step=True)
    yield "by-weight", _play(kvib.Sampler(indexed, WEIGHTS, 2))
    yield "ordered", _play(kvib.Sampler(kvib.Forecast(), WEIGHTS, 2, kvib.ordered))
    yield "mabs", _play(kvib.Sampler(kvib.Mabs(), WEIGHTS, 2))
    yield "osmd", _play(kvib.Sampler(kvib.OSMD(), WEIGHTS, 2))


def new_simulation():
    task, local = synthetic(clients=6, seed=1), LocalSGD(0.02, batch_size=64)
    sampler = kvib.Sampler(kvib.KVib(rounds=4), task.weights, 2, kvib.pivotal)
    engine = LinearEngine(task, local, threads=1)
    return Simulation(task, engine, sampler, local, ServerSGD(momentum=0.5))


def _checkpoint(path):
    simulation = new_simulation()
    simulation.load(path)
    held = [np.asarray(simulation.model), *map(np.asarray, simulation.memory)]
    return (
        [array.tobytes() for array in held],
        fingerprint(simulation.sampler.packed()),
        fingerprint(records.packed(simulation.records)),
    )


def _task(path):
    task = prepared.read(path)
    train, test = task.train, task.test
    arrays = (train.x, train.y, train.sizes, *test, task.weights)
    return task.name, repr(task.model), [np.asarray(array).tobytes() for array in arrays]


def _kept(folder, name, write, read, **options):
    path = Path(folder) / name
    write(path)
    return Subject(path.stem, path.read_bytes(), read, **options)


def written(folder):
    """Files of every kind as this version writes them, small ones; made in `folder`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, sampler in samplers():
            yield _kept(folder, f"{name}.npz", sampler.save, _sampler)
        simulation = new_simulation()
        list(simulation.run(rounds=3))
        yield _kept(folder, "checkpoint.npz", simulation.save, _checkpoint)
        task = synthetic(clients=3, seed=1)
        yield _kept(folder, "task.npz", lambda path: prepared.prepare(task, path), _task)


def earlier():
    """State files of earlier versions."""
    for path in sorted(FIXTURES.glob("*/*.npz")):
        # version 1 lists no arrays: a sound archive of some of them may be one that was written
        name, damage = f"{path.parent.name} {path.stem}", (*OF_BYTES, hidden)
        yield Subject(name, path.read_bytes(), _sampler, damage)


def fuzz(mutations, seed=0, keep=None):
    """This number of mutations, every fourth of a file of an earlier version; what came of them.

    Files that show a defect are kept in the folder `keep`.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.npz"
        groups, said = (list(written(folder)), list(earlier())), {}
        for file in (file for group in groups for file in group):
            path.write_bytes(file.data)
            said[file.name] = file.said(path)
        for number in range(mutations):
            rng = generator(seed, number)
            group = groups[number % 4 == 3]
            file = group[rng.integers(len(group))]
            damage = file.damage[rng.integers(len(file.damage))]
            path.write_bytes(damage(file.data, rng))
            found = outcome(lambda file=file: file.said(path), said[file.name])
            tally.add(file.name, damage.__name__, found)
            if keep is not None and found not in (REFUSED, IDENTICAL):
                name = f"{number} {file.name} {damage.__name__} {found}.npz".replace(" ", "-")
                shutil.copy(path, keep / name)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=7500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to keep files that show a defect")
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    tally = fuzz(given.mutations, given.seed, given.out)
    print(tally)
    sys.exit(tally.defects > 0)


if __name__ == "__main__":
    main()
