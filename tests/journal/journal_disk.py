"""A journal on a disk that is full, or read-only; see test_journal_file.py.

python tests/journal/journal_disk.py full FOLDER          # writes until RLIMIT_FSIZE forbids it
python tests/journal/journal_disk.py read-only FOLDER     # as nobody, if started as root
unshare -rm python tests/journal/journal_disk.py small FOLDER    # on a file system of 1 MB
"""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from journal_crash import assert_same

import kvib
from kvib.journal import journalled, read

CLIENTS = 2_000
WEIGHTS = np.arange(1, CLIENTS + 1)


def work(sampler, rounds):
    for _ in range(rounds):
        cohort = sampler.draw()
        sampler.update(cohort, np.ones(len(cohort)))


def until_it_stops(path, heal):
    """Work until the file cannot be written; healed, the sampler goes on as if nothing was."""
    sampler = journalled(path, kvib.KVib(), WEIGHTS, 100, snapshot_every=20)
    try:
        work(sampler, 10_000)
        raise AssertionError("the disk never was full")
    except OSError as error:
        told = str(error)
        assert "free space" in told, told
        assert "open it again" in told, told
    for call in (sampler.draw, sampler.outstanding):
        try:
            call()
            raise AssertionError("went on")
        except OSError as error:
            refusal = str(error)
        assert "has stopped" in refusal
    logged = sum(1 for _ in read(path).rounds())
    heal()
    straight = kvib.Sampler(kvib.KVib(), WEIGHTS, 100)
    with journalled(path) as again:
        assert logged == again.round
        for cohort in again.outstanding():
            again.update(cohort, np.ones(len(cohort)))
        assert again.round > 10
        work(again, 30)
        work(straight, again.round)
        assert_same(again, straight)
    with journalled(path) as again:
        assert_same(again, straight)
    print(told)


def full(folder):
    """Every file ends at 600 kB; SQLite sees a failed write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, most))
    until_it_stops(
        Path(folder) / "a", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    )


def small(folder):
    """A file system of 1 MB, then of 50: no space left on device, for real."""

    def mount(*options):
        subprocess.run(["mount", "-t", "tmpfs", *options, "kvib", folder], check=True)

    mount("-o", "size=1m")
    until_it_stops(Path(folder) / "a", lambda: mount("-o", "remount,size=50m"))


def read_only(folder):
    path = Path(folder) / "a"
    with journalled(path, kvib.KVib(), WEIGHTS, 100) as sampler:
        work(sampler, 3)
    before = path.read_bytes()
    path.chmod(0o444)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for mode in ("the file", "its folder too"):
        try:
            journalled(path)
            raise AssertionError("opened")
        except OSError as error:
            print(mode, error)
        assert len(list(read(path).rounds())) == 3
        if os.getuid() != 65534:
            Path(folder).chmod(0o555)
    assert path.read_bytes() == before


if __name__ == "__main__":
    {"full": full, "small": small, "read-only": read_only}[sys.argv[1]](sys.argv[2])
