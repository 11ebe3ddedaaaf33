"""Damaged journals: what is read of them is refused, or it is what the whole file says.

python tests/files/fuzz_journals.py --mutations 2800 --seed 0 --out out/fuzz

Bits are flipped anywhere in the file, pages zeroed, swapped and copied over others, files cut off,
rows deleted, changed and doubled through SQL, logs damaged. Every question to the history and the
sampler itself are looked at apart. The exit code is 1 if an answer is silently another one, or an
error is none of the documented ones.

A log that is cut off, or damaged in its last transaction, is as after a crash: then the answers
may be those of an earlier event, all of the same one.
"""

import argparse
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kvib
from kvib.journal import journalled, read

PAGE = 4096
N = 30
WEIGHTS = np.random.default_rng(0).lognormal(0, 1, N)


def plain(value: Any) -> Any:
    """To be compared: arrays by type, shape and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, kvib.Cohort):
        fields = ("ids", "count", "expected", "weight", "response", "availability", "round")
        others = ("budget", "requested", "most", "guarantee", "token")
        return [plain(getattr(value, name)) for name in (*fields, *others)]
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return repr(value)


QUESTIONS = {
    "about": lambda history: history.about,
    "table": lambda history: history.table(),
    "rounds": lambda history: list(history.rounds()),
    "participation": lambda history: history.participation(),
    "keys": lambda history: list(history.keys()),
    "weights": lambda history: history.weights(),
    "terms": lambda history: vars(history.terms()),
    "upgrades": lambda history: history.upgrades(),
}


def asked(question: str, path: Path) -> Any:
    return plain(QUESTIONS[question](read(path)))


def opened(path: Path) -> Any:
    """The sampler, what waits, whether a repeat is known, and what it does next."""
    with journalled(path) as sampler:
        before, waiting = sampler.packed(), sampler.outstanding()
        for one in [one for one in read(path).rounds() if one.answered][-1:]:
            sampler.update(one.cohort, one.norms)
        for cohort in waiting:
            sampler.update(cohort, np.ones(len(cohort)))
        for _ in range(3):
            cohort = sampler.draw()
            sampler.update(cohort, np.ones(len(cohort)))
        return plain([before, waiting, sampler.packed()])


def answers(path: Path) -> dict[str, Any]:
    """Everything that can be had of a journal, or the error; opened last, since that changes it."""
    told = {}
    for name in (*QUESTIONS, "sampler"):
        try:
            told[name] = opened(path) if name == "sampler" else asked(name, path)
        except Exception as error:
            told[name] = error
    return told


class Specimen(NamedTuple):
    """A journal, whole or as a crash leaves it, and what it says."""

    name: str
    files: dict[str, bytes]
    moments: list[dict[str, Any]]
    """What it says, after each transaction of its log if it has one; the last one last."""


def written(folder: Path, files: dict[str, bytes]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for end, data in files.items():
        (folder / f"a{end}").write_bytes(data)
    return folder / "a"


def image(path: Path) -> dict[str, bytes]:
    """What a crash leaves at this moment."""
    ends = ("", "-wal")
    return {e: Path(f"{path}{e}").read_bytes() for e in ends if Path(f"{path}{e}").exists()}


def specimens(folder: Path) -> list[Specimen]:
    """Snapshots with a tail of events, changes of the population, removed rounds, a log."""
    made = []
    for name, policy, procedure, options, rounds, crashed in (
        ("plain", kvib.KVib(), kvib.independent, {"snapshot_every": 20}, 50, False),
        ("keep", kvib.Forecast(), kvib.pivotal, {"snapshot_every": 6, "keep": 12}, 40, False),
        ("keys", kvib.KVib(), kvib.independent, {"keys": [f"c{i}" for i in range(N)]}, 25, False),
        ("log", kvib.Vrb(), kvib.with_replacement, {"snapshot_every": 3, "keep": 5}, 12, True),
    ):
        path = written(folder / name, {})
        sampler = journalled(path, policy, WEIGHTS, 4, procedure, seed=1, **options)
        for round in range(rounds):
            if name == "keys" and round % 6 == 5:
                sampler.join([1.0 + round], [f"new{round}"])
                sampler.leave([f"c{round}"])
                sampler.reweigh(["c0"], [1.0 + round])
            cohort = sampler.draw()
            if round % 7 != 3:
                norms = np.random.default_rng([2, round]).lognormal(0, 1, len(cohort))
                sampler.update(cohort, norms)
        files = image(path)
        sampler.close()
        files = files if crashed else image(path)
        moments = [answers(written(folder / "moment", then)) for then in earlier(files)]
        made.append(Specimen(name, files, moments))
    return made


def earlier(files: dict[str, bytes]) -> list[dict[str, bytes]]:
    """The files as they were after each transaction of the log."""
    log = files.get("-wal", b"")
    ends = [0] if log else []
    for at in range(32, len(log), 24 + PAGE):
        if log[at + 4 : at + 8] != bytes(4):  # a transaction ends here
            ends.append(at + 24 + PAGE)
    return [files | {"-wal": log[:end]} for end in ends] or [files]


# Mutations: each changes the files of a specimen, and says which of them.

Files = dict[str, bytes]


def some_file(rng: random.Random, files: Files) -> str:
    ends = list(files)
    return rng.choices(ends, [len(files[end]) for end in ends])[0]


def flip(rng: random.Random, files: Files, end: str, bits: int = 1) -> Files:
    data = bytearray(files[end])
    for _ in range(bits):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return files | {end: bytes(data)}


def flip_one(rng: random.Random, files: Files) -> Files:
    return flip(rng, files, some_file(rng, files))


def flip_many(rng: random.Random, files: Files) -> Files:
    return flip(rng, files, some_file(rng, files), rng.randrange(2, 9))


def flip_head(rng: random.Random, files: Files) -> Files:
    data = bytearray(files[""])
    data[rng.randrange(16, 100)] ^= 1 << rng.randrange(8)
    return files | {"": bytes(data)}


def pages(rng: random.Random, files: Files) -> tuple[bytearray, int, int]:
    data = bytearray(files[""])
    a, b = rng.sample(range(len(data) // PAGE), 2)
    return data, a * PAGE, b * PAGE


def zero_page(rng: random.Random, files: Files) -> Files:
    data, a, _ = pages(rng, files)
    data[a : a + PAGE] = bytes(PAGE)
    return files | {"": bytes(data)}


def swap_pages(rng: random.Random, files: Files) -> Files:
    data, a, b = pages(rng, files)
    data[a : a + PAGE], data[b : b + PAGE] = data[b : b + PAGE], data[a : a + PAGE]
    return files | {"": bytes(data)}


def copy_page(rng: random.Random, files: Files) -> Files:
    data, a, b = pages(rng, files)
    data[a : a + PAGE] = data[b : b + PAGE]
    return files | {"": bytes(data)}


def scribble(rng: random.Random, files: Files) -> Files:
    end = some_file(rng, files)
    data, at = bytearray(files[end]), rng.randrange(len(files[end]))
    data[at : at + 16] = rng.randbytes(len(data[at : at + 16]))
    return files | {end: bytes(data)}


def cut(rng: random.Random, files: Files) -> Files:
    length = rng.randrange(len(files[""]))
    return files | {"": files[""][: rng.choice([length, length // PAGE * PAGE])]}


def edit(rng: random.Random, files: Files) -> Files:
    """A row of some table, through SQL, as a user might who wants to put things right."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "edited", files)
        db = sqlite3.connect(path, isolation_level=None)
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
        table = rng.choice([name for (name,) in db.execute(tables)])
        rows = db.execute(f"SELECT rowid, * FROM {table}").fetchall()
        if rows:
            key, *row = rng.choice(rows)
            names = [one[1] for one in db.execute(f"PRAGMA table_info({table})")]
            rng.choice([delete, delete, change, change, double])(rng, db, table, key, names, row)
        db.close()
        return image(path)


def delete(rng, db, table, key, names, row):
    db.execute(f"DELETE FROM {table} WHERE rowid = ?", (key,))


def change(rng, db, table, key, names, row):
    at = rng.randrange(len(names))
    value = row[at]
    if isinstance(value, bytes):
        place = rng.randrange(max(len(value), 1))
        value = value[:place] + b"?" + value[place + 1 :]
    elif isinstance(value, str):
        value = value[:-1] + "?"
    elif at == 0:  # the key
        value += rng.choice([-1, 1, 10**6])
    else:
        value = rng.choice([None, 0, (value or 0) + 1, (value or 0) * 1.5])
    db.execute(f"UPDATE OR IGNORE {table} SET {names[at]} = ? WHERE rowid = ?", (value, key))


def double(rng, db, table, key, names, row):
    first = (row[0] + 10**6) if isinstance(row[0], int) else row[0] + row[0][:1]
    marks = ", ".join("?" * len(names))
    db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (first, *row[1:]))


def damage_log(rng: random.Random, files: Files) -> Files:
    return flip(rng, files, "-wal", rng.choice([1, 1, 1, 5]))


def cut_log(rng: random.Random, files: Files) -> Files:
    return files | {"-wal": files["-wal"][: rng.randrange(len(files["-wal"]))]}


def log_head(rng: random.Random, files: Files) -> Files:
    data = bytearray(files["-wal"])
    data[rng.randrange(32)] ^= 1 << rng.randrange(8)
    return files | {"-wal": bytes(data)}


ANY = {
    flip_one: 8,
    flip_many: 2,
    flip_head: 1,
    zero_page: 2,
    swap_pages: 2,
    copy_page: 2,
    scribble: 2,
    cut: 1,
    edit: 6,
}
LOG = {damage_log: 6, cut_log: 2, log_head: 1}
"""How often each is tried."""


class Verdict(NamedTuple):
    """What became of a mutation."""

    outcome: str
    details: str = ""


def judged(specimen: Specimen, told: dict[str, Any], of_log: bool) -> Verdict:
    """Identical, refused, earlier (a log that ends sooner), SILENT, or FOREIGN."""
    foreign = {
        name: repr(answer)
        for name, answer in told.items()
        if isinstance(answer, Exception) and not isinstance(answer, ValueError | OSError)
    }
    if foreign:
        return Verdict("FOREIGN", json.dumps(foreign))
    given = {name: answer for name, answer in told.items() if not isinstance(answer, Exception)}

    def agrees(moment: dict[str, Any]) -> bool:
        return all(moment[name] == answer for name, answer in given.items())

    if agrees(specimen.moments[-1]):
        return Verdict("identical" if len(given) == len(told) else "refused")
    if of_log and any(map(agrees, specimen.moments)):
        return Verdict("earlier")
    other = [name for name in given if given[name] != specimen.moments[-1][name]]
    return Verdict("SILENT", ", ".join(other))


def fuzz(folder: Path, mutations: int, seed: int) -> tuple[Counter[tuple[str, str]], list[dict]]:
    """How often each kind of mutation ended in which way, and the bad ones with their files."""
    rng, tally, bad = random.Random(seed), Counter(), []
    kinds = specimens(folder)
    for k in range(mutations):
        specimen = kinds[k % len(kinds)]
        chances = ANY | (LOG if "-wal" in specimen.files else {})
        mutation = rng.choices(list(chances), list(chances.values()))[0]
        files = mutation(rng, specimen.files)
        told = answers(written(folder / "mutated", files))
        verdict = judged(specimen, told, of_log=files[""] == specimen.files[""])
        tally[mutation.__name__, verdict.outcome] += 1
        if verdict.outcome.isupper():
            written(folder / f"bad{k}", files)
            bad.append({"number": k, "specimen": specimen.name, "mutation": mutation.__name__})
            bad[-1] |= verdict._asdict()
    return tally, bad


def table(tally: Counter[tuple[str, str]]) -> str:
    outcomes = ["identical", "refused", "earlier", "SILENT", "FOREIGN"]
    kinds = sorted({kind for kind, _ in tally})
    lines = ["".join([f"{'':12}", *(f"{name:>11}" for name in outcomes)])]
    for kind in kinds:
        lines.append("".join([f"{kind:12}", *(f"{tally[kind, name]:11}" for name in outcomes)]))
    sums = [sum(tally[kind, name] for kind in kinds) for name in outcomes]
    return "\n".join([*lines, "".join([f"{'all':12}", *(f"{total:11}" for total in sums)])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=2800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for journals")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    tally, bad = fuzz(given.out, given.mutations, given.seed)
    print(table(tally))
    for one in bad:
        print(json.dumps(one))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
