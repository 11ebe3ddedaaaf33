"""Many runs, as many at once as there are cores."""

import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any

from kvib.lab.experiment import Run
from kvib.lab.runs import HERE, Machine, Outcome, outcome, play

Report = Callable[[Run, int], None]
"""Told of a run and of its rounds done."""


def play_all(
    runs: Sequence[Run],
    out: Path,
    machine: Machine = HERE,
    *,
    processes: int = 1,
    stop_after: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    report: Report = lambda *_: None,
) -> list[Outcome]:
    """Play all runs that are not finished; each in its folder under `out`/experiment.

    Args:
        runs: which, in this order.
        out: where.
        machine: where, likewise.
        processes: how many at once.
        stop_after: seconds after which to save and stop.
        stop: asked now and then whether to do so now.
        report: for a progress display.
    """
    deadline = time.monotonic() + stop_after
    folders = [out / run.experiment.name for run in runs]
    done = [outcome(folder / run.name, run) for folder, run in zip(folders, runs, strict=True)]
    for run, ended in zip(runs, done, strict=True):
        report(run, 0 if ended is None else ended.rounds)
    if processes == 1 or len(runs) == 1:
        return [
            play(run, folder, machine, deadline=deadline, stop=stop, report=_one(report, run))
            if (time.monotonic() < deadline and not stop())
            or (ended is not None and ended.finished)
            else ended or Outcome(0, finished=False)
            for run, folder, ended in zip(runs, folders, done, strict=True)
        ]
    spawn = multiprocessing.get_context("spawn")
    told, halt = spawn.Queue(), spawn.Event()
    ends: dict[int, Outcome | None] = {}
    with (
        _few_threads(machine.threads),
        ProcessPoolExecutor(processes, spawn, initializer=_begin, initargs=(told, halt)) as pool,
    ):
        try:
            with _deaf_children():
                jobs: dict[Future[Outcome | None], int] = {
                    pool.submit(_work, k, runs[k], folders[k], machine, deadline): k
                    for k, ended in enumerate(done)
                    if ended is None or not ended.finished
                }
            while jobs:
                if stop():
                    halt.set()
                ready, _ = wait(jobs, timeout=0.2, return_when=FIRST_COMPLETED)
                for k, rounds in _waiting(told):
                    if k not in ends:  # words may come after the result, by another way
                        report(runs[k], rounds)
                for job in ready:
                    k = jobs.pop(job)
                    ends[k] = ended = job.result()
                    if ended is not None:
                        report(runs[k], ended.rounds)
        except BaseException:
            halt.set()  # leaving the pool waits for whoever plays
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [ends.get(k) or done[k] or Outcome(0, finished=False) for k in range(len(runs))]


def _one(report: Report, run: Run) -> Callable[[int], None]:
    return lambda rounds: report(run, rounds)


def _begin(told: Any, halt: Any) -> None:
    global _told, _halt
    _told, _halt = told, halt
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `_deaf_children`, for systems without masks
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker whose command was killed would go on writing where the next command writes too."""
    connection.wait([parent])
    os._exit(1)


def _work(k: int, run: Run, folder: Path, machine: Machine, deadline: float) -> Outcome | None:
    """None if the deadline or Ctrl-C came first."""
    if time.monotonic() >= deadline or _halt.is_set():
        return None
    last = 0.0

    def tell(rounds: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            _told.put((k, rounds))

    return play(run, folder, machine, deadline=deadline, stop=_halt.is_set, report=tell)


_told: Any = None
_halt: Any = None


def _waiting(told: Any) -> Iterator[tuple[int, int]]:
    while True:
        try:
            yield told.get_nowait()
        except queue.Empty:
            return


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal: workers begun in here leave it to this one, also
    while they are still importing."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _few_threads(threads: int | None) -> Iterator[None]:
    """Libraries read these when they are first imported, so workers must be born with them."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    if threads is not None:
        os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
