"""A state file is whole or refused, and never a program."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from zlib import crc32

import fuzz_states
import numpy as np
import pytest

import kvib
from kvib.files import storage


def new(policy=None):
    sampler = kvib.Sampler(policy or kvib.KVib(rounds=20), [10, 20, 30, 40, 50], 2, seed=1)
    for _ in range(5):
        cohort = sampler.draw()
        sampler.update(cohort, np.ones(len(cohort)))
    return sampler


def test_one_file_without_pickle(tmp_path):
    path = tmp_path / "state.npz"
    new().save(path)
    assert os.listdir(tmp_path) == ["state.npz"]  # nothing temporary left behind
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
        assert all(file[name].dtype != object for name in file.files)
    assert header["version"] == 2
    assert header["policy"]["name"] == "KVib"


def test_every_array_is_listed_with_its_checksum(tmp_path):
    """CRC-32 of what NumPy says of an array, dtype and shape included, and of its bytes."""
    path = tmp_path / "state.npz"
    new().save(path)
    with np.load(path) as file:
        listed = json.loads(str(file["header"]))["arrays"]
        assert set(listed) == set(file.files) - {"header"}
        for name, checksum in listed.items():
            alone = io.BytesIO()
            np.save(alone, file[name])
            assert crc32(alone.getvalue()) == checksum


def test_a_name_without_extension_stays_as_given(tmp_path):
    new().save(tmp_path / "state")
    assert kvib.Sampler.load(tmp_path / "state").round == 5


def test_truncated_anywhere(tmp_path):
    path = tmp_path / "state.npz"
    new().save(path)
    whole = path.read_bytes()
    for length in [0, 1, 10, *range(100, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a whole kvib sampler file"):
            kvib.Sampler.load(path)


def test_flipped_bytes_are_noticed_or_harmless(tmp_path):
    path = tmp_path / "state.npz"
    new().save(path)
    whole, names = path.read_bytes(), set()
    with zipfile.ZipFile(path) as archive:
        spans = [
            (i.header_offset + 200, i.file_size) for i in archive.infolist() if i.file_size > 300
        ]
        names = {i.filename for i in archive.infolist()}
    assert "state.omega.npy" in names
    for start, _ in spans:  # inside the data of an array
        broken = bytearray(whole)
        broken[start] ^= 0xFF
        path.write_bytes(bytes(broken))
        with pytest.raises(ValueError, match="not a whole kvib sampler file"):
            kvib.Sampler.load(path)


@pytest.mark.parametrize(
    "content",
    [b"hello", b"\x80\x04N.", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 18],
    ids=["text", "pickle", "zip", "empty zip"],
)
def test_foreign_files(tmp_path, content):
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign is not a whole kvib sampler file"):
        kvib.Sampler.load(path)


def test_foreign_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    np.savez(tmp_path / "b.npz", header=np.array("{}"))
    np.save(tmp_path / "c.npy", np.ones(3))
    for name in ("a.npz", "b.npz", "c.npy"):
        with pytest.raises(ValueError, match="not a whole kvib sampler file"):
            kvib.Sampler.load(tmp_path / name)


def opened(path, version=2):
    """Header and arrays of a sampler's file, to be changed."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    header["version"] = version
    return {k: v for k, v in header.items() if k not in ("format", "arrays", "crc")}, arrays


def rewritten(path, version=2, /, **changes):
    """The file with other content, and with the checksums of that: as malice would write it.

    In version 1 as that wrote it: no list of arrays, and no checksum but those of the archive.
    """
    header, arrays = opened(path, version)
    for name, value in changes.items():
        if name in header:
            header[name] = value
        elif value is None:
            del arrays[name]
        else:
            arrays[name] = value
    sealed = storage.headed("sampler", header, arrays)
    if version == 2:
        storage.write(path, sealed)
    else:
        plain = json.dumps({"format": "kvib sampler", **header})
        np.savez(path, **{**sealed, "header": np.array(plain)})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "weights is missing"),
        ({"weights": np.array([1.0, -1.0])}, "not a whole kvib sampler file"),
        ({"weights": np.array([1.0, 1, 1, 1, -1])}, "weight -1.0 of client 4"),
        ({"weights": np.ones(4) / 4}, "not of 4 clients"),
        ({"budget": 9, "usual": 9}, "budget 9 exceeds"),
        ({"response.trials": np.zeros(3, int), "response.known": np.ones(0)}, "not of 5 clients"),
        ({"state.omega": np.array(["a"] * 5)}, "not of 5 clients"),
        ({"policy": {"name": "KVib", "fields": {"colour": 3}}}, "install the kvib version"),
        ({"policy": {"name": "Later", "fields": {}}}, "install the kvib version"),
        ({"updated": np.zeros(3, np.uint8)}, "updated is uint8 of shape"),
        ({"procedure": "mine"}, "'mine' is not one of kvib's procedures"),
        ({"policy": None}, "a policy of your own"),
        ({"state.omega": None}, "load it with the policy that was saved"),
    ],
)
def test_tampered_files(tmp_path, changes, message, version):
    path = tmp_path / "state.npz"
    new().save(path)
    rewritten(path, version, **changes)
    with pytest.raises(ValueError, match=message):
        kvib.Sampler.load(path)


def test_a_later_version(tmp_path):
    path = tmp_path / "state.npz"
    new().save(path)
    header, arrays = opened(path, version=3)
    sealed = storage.headed("sampler", header, arrays)
    np.savez(path, **sealed)
    with pytest.raises(ValueError, match="version 3, this kvib reads 1 and 2: install the kvib"):
        kvib.Sampler.load(path)


def test_numpy_numbers_in_a_policy(tmp_path):
    sampler = new(kvib.KVib(rounds=np.int64(20), mix=np.float32(0.5)))
    sampler.save(tmp_path / "state.npz")
    assert kvib.Sampler.load(tmp_path / "state.npz").policy == sampler.policy


def test_only_the_owner_can_read_a_file(tmp_path):
    """Whatever the umask, from the moment the file is there, and after it was replaced."""
    path, before = tmp_path / "state.npz", os.umask(0)
    try:
        with storage.private(tmp_path / "new") as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        path.write_bytes(b"")
        path.chmod(0o644)
        new().save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("there", [True, False], ids=["replaced", "made"])
def test_a_link_stays_a_link(tmp_path, there):
    """What it points to is written, as a whole and where it is."""
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "real.npz", tmp_path / "link.npz"
    if there:
        new().save(target)
    link.symlink_to(target)
    sampler = new()
    sampler.draw()
    sampler.save(link)
    assert link.is_symlink()
    assert kvib.Sampler.load(target).round == sampler.round == kvib.Sampler.load(link).round
    assert os.listdir(tmp_path / "far") == ["real.npz"]
    assert sorted(os.listdir(tmp_path)) == ["far", "link.npz"]


def test_damaged_files_are_refused_or_say_the_same():
    """Every kind of file, this version's and earlier ones'.

    `python tests/files/fuzz_states.py` does more of it.
    """
    tally = fuzz_states.fuzz(mutations=300, seed=1)
    assert tally.defects == 0, str(tally)
    assert tally.total("refused") > 200
    assert tally.total("identical") > 5


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        kvib.Sampler.load(tmp_path / "nowhere.npz")


class CountState(NamedTuple):
    seen: np.ndarray


@dataclass(frozen=True)
class Rarely(kvib.Policy[CountState]):
    """A user's policy: prefer whom we saw least."""

    procedure: ClassVar = kvib.pivotal

    def start(self, setting):
        return CountState(np.zeros(len(setting.weights)))

    def scores(self, state, ids):
        return 1 / (1 + state.seen[ids])

    def observe(self, state, cohort, feedback):
        state.seen[cohort.ids] += 1
        return state


def test_a_policy_of_your_own(tmp_path):
    path = tmp_path / "state.npz"
    sampler = new(Rarely())
    sampler.save(path)
    with pytest.raises(ValueError, match="a policy of your own"):
        kvib.Sampler.load(path)
    resumed = kvib.Sampler.load(path, policy=Rarely())
    assert resumed.draw().ids.tolist() == sampler.draw().ids.tolist()
    with pytest.raises(ValueError, match="load it with the policy that was saved"):
        kvib.Sampler.load(path, policy=kvib.KVib())
    new(kvib.Vrb()).save(path)
    with pytest.raises(ValueError, match="saved with Vrb, not KVib"):
        kvib.Sampler.load(path, policy=kvib.KVib())


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    sampler = new()
    sampler.save(path)
    before = path.read_bytes()
    sampler.draw()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sampler.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.npz"]


SAVING = """
import sys, kvib, numpy as np
sampler = kvib.Sampler(kvib.KVib(mix=0.3, gamma=1.0), np.arange(1, 20001), 50, seed=1)
sampler.save(sys.argv[1])
print("ready", flush=True)
while True:
    cohort = sampler.draw()
    sampler.update(cohort, np.ones(len(cohort)))
    sampler.save(sys.argv[1])
"""


@pytest.mark.slow
def test_killed_while_saving(tmp_path):
    """Kill −9 at random instants: the file is always whole, and the run goes on from it."""
    path = tmp_path / "state.npz"
    rng = np.random.default_rng(0)
    for _ in range(15):
        command = [sys.executable, "-c", SAVING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        resumed = kvib.Sampler.load(path)
        fresh = kvib.Sampler(kvib.KVib(mix=0.3, gamma=1.0), np.arange(1, 20001), 50, seed=1)
        for _ in range(resumed.round):
            cohort = fresh.draw()
            fresh.update(cohort, np.ones(len(cohort)))
        assert fresh.probabilities().tolist() == resumed.probabilities().tolist()
        path.unlink()
