"""One writer, whoever else looks at the files; and only their owner looks."""

import gc
import os
import shutil
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

import kvib
from kvib.journal import journalled, lock, read

posix = pytest.mark.skipif(os.name != "posix", reason="a system without fork and modes")


def begin(path, **options):
    return journalled(path, kvib.KVib(), np.arange(1, 13), 4, seed=5, **options)


def play(sampler, rounds):
    for _ in range(rounds):
        cohort = sampler.draw()
        sampler.update(cohort, np.ones(len(cohort)))


OPEN = """
import sys
from kvib.journal import journalled, read
print(read(sys.argv[1]).about.rounds)
try:
    journalled(sys.argv[1])
except OSError as error:
    print(type(error).__name__, error)
"""


def elsewhere(path, code=OPEN):
    """What another process says."""
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(params=["open file", "SQLite"])
def locked_by(request, monkeypatch):
    """The lock of this system, and the one of systems without a better one."""
    if request.param == "SQLite":
        monkeypatch.setattr(lock, "_belong_to_files", lambda: False)
    elif not lock._belong_to_files():
        pytest.skip("this system has no locks of open files")
    return request.param


@pytest.mark.usefixtures("locked_by")
def test_one_writer(tmp_path):
    with begin(tmp_path / "a") as sampler:
        play(sampler, 2)
        with pytest.raises(BlockingIOError, match="a second time in this one; close it there"):
            journalled(tmp_path / "a")
        (tmp_path / "link").symlink_to(tmp_path / "a")
        with pytest.raises(BlockingIOError, match="open elsewhere"):
            journalled(tmp_path / "link")
        rounds, error = elsewhere(tmp_path / "a")
        assert rounds == "2"  # questions are answered meanwhile
        assert error.startswith("BlockingIOError")
        assert "is open elsewhere, in another process" in error
        play(sampler, 2)
    journalled(tmp_path / "a").close()


@pytest.mark.usefixtures("locked_by")
def test_a_sampler_that_is_forgotten_lets_go(tmp_path):
    sampler = begin(tmp_path / "a")
    play(sampler, 2)
    del sampler
    gc.collect()
    with journalled(tmp_path / "a") as sampler:
        assert sampler.round == 2


def look(path):
    """As anybody might who does not know that it is a lock."""
    with open(f"{path}.lock", "rb") as file:
        assert file.read() == b""


def back_up(path):
    shutil.copytree(path.parent, path.parent.with_name("backup"))


@posix
@pytest.mark.parametrize("read_by", [look, back_up])
def test_reading_in_the_same_process_lets_no_other_in(tmp_path, read_by):
    path = tmp_path / "here" / "a"
    path.parent.mkdir()
    with begin(path) as sampler:
        play(sampler, 2)
        read_by(path)
        rounds, error = elsewhere(path)
        assert rounds == "2"
        assert error.startswith("BlockingIOError")
        with pytest.raises(BlockingIOError):
            journalled(path)
        play(sampler, 2)
    with journalled(path) as sampler:
        assert sampler.round == 4


def test_another_name_of_the_same_file(tmp_path):
    """SQLite's log goes by name, so a second name is refused, open or closed; the first is not."""
    other = tmp_path / "hard"
    with begin(tmp_path / "a") as sampler:
        play(sampler, 2)
        os.link(tmp_path / "a", other)
        for attempt in (journalled, read):
            with pytest.raises(BlockingIOError, match=r"hard has another name \(a hard link\)"):
                attempt(other)
        code = OPEN.replace("print(read(sys.argv[1]).about.rounds)", "")
        assert elsewhere(other, code)[0].startswith("BlockingIOError")
        play(sampler, 1)
    with pytest.raises(BlockingIOError, match="use that one, or a copy"):
        journalled(other)
    with journalled(tmp_path / "a") as sampler:
        assert sampler.round == 3
    (tmp_path / "a").unlink()
    with journalled(other) as sampler:
        assert sampler.round == 3
    shutil.move(other, tmp_path / "moved")
    journalled(tmp_path / "moved").close()


OLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + ".lock", timeout=0, isolation_level=None)
try:
    db.execute("PRAGMA journal_mode=OFF")
    db.execute("BEGIN EXCLUSIVE")
    print("locked", flush=True)
    sys.stdin.read()
except sqlite3.OperationalError as error:
    print(error)
"""
"""How kvib locked a journal before it had another way."""


@pytest.mark.usefixtures("locked_by")
def test_earlier_versions_are_kept_out_and_keep_out(tmp_path):
    with begin(tmp_path / "a") as sampler:
        assert elsewhere(tmp_path / "a", OLD) == ["database is locked"]
        play(sampler, 1)
    with subprocess.Popen(
        [sys.executable, "-c", OLD, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as old:
        assert old.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match="is open elsewhere"):
            journalled(tmp_path / "a")
        old.kill()
    journalled(tmp_path / "a").close()


FORK = """
import os, sys, numpy as np, kvib
from kvib.journal import journalled
sampler = journalled(sys.argv[1], kvib.KVib(), np.ones(5), 2)
child = os.fork()
try:
    sampler.draw()
except OSError as error:
    print(error, flush=True)
    try:
        journalled(sys.argv[1])
    except BlockingIOError as error:
        print(error, flush=True)
    sampler.close()
    os._exit(0)
os.waitpid(child, 0)
print(sampler.round, flush=True)
try:
    journalled(sys.argv[1])
except BlockingIOError as error:
    print(error, flush=True)
sampler.draw()
"""


@posix
def test_a_forked_child_cannot_write(tmp_path):
    child, second, round, third = elsewhere(tmp_path / "a", FORK)
    assert "draw and update where it was opened" in child
    assert "is open elsewhere" in second
    assert round == "1"
    assert "is open elsewhere" in third  # nothing that the child closed let go
    assert read(tmp_path / "a").about.rounds == 2


ORPHAN = """
import os, sys, time, numpy as np, kvib
from kvib.journal import journalled
sampler = journalled(sys.argv[1], kvib.KVib(), np.ones(5), 2)
sampler.draw()
if os.fork() == 0:
    print("forked", flush=True)  # by the child: now it has let go of what it inherited
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@posix
def test_a_killed_process_lets_go_even_if_its_child_lives_on(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path / "a")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout.readline() == "forked\n"
            os.kill(parent.pid, signal.SIGKILL)
            os.waitpid(parent.pid, 0)
            with journalled(tmp_path / "a") as sampler:
                assert sampler.round == 1
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_lock_that_was_removed_does_not_let_two_write(tmp_path):
    """Whoever finds that another has written stops, and has changed nothing."""
    with begin(tmp_path / "a") as first:
        play(first, 2)
        (tmp_path / "a.lock").unlink()
        with journalled(tmp_path / "a") as second:
            play(second, 2)
            with pytest.raises(BlockingIOError, match="was written by another process; let only"):
                first.draw()
            with pytest.raises(OSError, match="has stopped"):
                first.draw()
            play(second, 1)
    with journalled(tmp_path / "a") as sampler:
        assert sampler.round == 5


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@posix
def test_only_the_owner_can_read_the_files(tmp_path):
    before = os.umask(0)
    try:
        sampler = begin(tmp_path / "a", snapshot_every=2)
        play(sampler, 3)
        assert set(modes(tmp_path)) == {"a", "a-wal", "a-shm", "a.lock"}
        assert set(modes(tmp_path).values()) == {0o600}
        assert len(list(read(tmp_path / "a").rounds())) == 3
        sampler.close()
        list(read(tmp_path / "a").rounds())
        assert modes(tmp_path) == {"a": 0o600, "a.lock": 0o600}
    finally:
        os.umask(before)


@posix
def test_who_may_read_it_is_the_users_choice_afterwards(tmp_path):
    begin(tmp_path / "a").close()
    (tmp_path / "a").chmod(0o640)
    with journalled(tmp_path / "a") as sampler:
        play(sampler, 1)
        assert modes(tmp_path)["a-wal"] == modes(tmp_path)["a"] == 0o640


def test_a_reader_leaves_the_log_of_a_writer_without_locks(tmp_path):
    """SQLite's locks of the journal itself go when the process copies it; then a reader must not
    take the writer's empty log for one that was left behind."""
    begin(tmp_path / "a").close()
    with journalled(tmp_path / "a") as sampler:
        assert (tmp_path / "a-wal").stat().st_size == 0
        for name in ("a", "a-shm"):
            (tmp_path / name).read_bytes()
        elsewhere(tmp_path / "a", "import sys, kvib; kvib.journal.read(sys.argv[1]).table()")
        play(sampler, 3)
        killed = tmp_path / "killed"
        killed.mkdir()
        for name in ("a", "a-wal"):
            shutil.copy(tmp_path / name, killed / name)
    assert read(killed / "a").about.rounds == 3
