"""Many runs, as many at once as there are cores."""

import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from kvib.lab.experiment import Run
from kvib.lab.runs import HERE, Machine, RunOutcome, outcome, play
from kvib.sim.engines.make import EngineShelf

Report = Callable[[Run, int], None]
"""Takes a run and the number of its rounds that are done."""


def play_all(
    runs: Sequence[Run],
    out: Path,
    machine: Machine = HERE,
    *,
    processes: int = 1,
    shelf: EngineShelf | None = None,
    stop_after: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
    report: Report = lambda *_: None,
) -> list[RunOutcome]:
    """Play all runs that are not finished; each in its folder under `out`/experiment.

    Args:
        runs: the runs, in this order.
        out: folder of the experiments' folders.
        machine: the machine that plays them.
        processes: how many at once.
        shelf: the last engine of an earlier call, if one process plays them.
        stop_after: seconds after which to save and stop.
        stop: asked now and then whether to do so now.
        report: for a progress display.
    """
    deadline = time.monotonic() + stop_after
    folders = [out / run.experiment.name for run in runs]
    done = [outcome(folder / run.name, run) for folder, run in zip(folders, runs, strict=True)]
    for run, ended in zip(runs, done, strict=True):
        report(run, 0 if ended is None else ended.rounds)
    jobs = [
        _Job(k, run, folder, machine, deadline)
        for k, (run, folder, ended) in enumerate(zip(runs, folders, done, strict=True))
        if ended is None or not ended.finished
    ]
    if processes == 1 or len(runs) == 1:
        ends = _in_turn(jobs, EngineShelf() if shelf is None else shelf, stop, report)
    else:
        ends = _at_once(jobs, processes, machine.threads, stop, report)
    return [ends.get(k) or ended or RunOutcome(0, finished=False) for k, ended in enumerate(done)]


class _Job(NamedTuple):
    """A run to be played."""

    number: int
    run: Run
    folder: Path
    machine: Machine
    deadline: float
    """Of `time.monotonic`."""

    def play(
        self, shelf: EngineShelf, stop: Callable[[], bool], report: Callable[[int], None]
    ) -> RunOutcome | None:
        """None if the deadline or Ctrl-C came first."""
        if time.monotonic() >= self.deadline or stop():
            return None
        return play(
            self.run,
            self.folder,
            self.machine,
            shelf=shelf,
            deadline=self.deadline,
            stop=stop,
            report=report,
        )


Ends = dict[int, RunOutcome | None]
"""How runs ended, by the number of their job."""


def _in_turn(
    jobs: list[_Job], shelf: EngineShelf, stop: Callable[[], bool], report: Report
) -> Ends:
    """In this process."""
    return {job.number: job.play(shelf, stop, _one(report, job.run)) for job in jobs}


def _at_once(
    jobs: list[_Job],
    processes: int,
    threads: int | None,
    stop: Callable[[], bool],
    report: Report,
) -> Ends:
    """In several processes."""
    spawn = multiprocessing.get_context("spawn")
    told, halt = spawn.Queue(), spawn.Event()
    runs, ends = {job.number: job.run for job in jobs}, dict[int, RunOutcome | None]()
    with (
        _few_threads(threads),
        ProcessPoolExecutor(processes, spawn, initializer=_begin, initargs=(told, halt)) as pool,
    ):
        try:
            with _deaf_children():
                waiting = {pool.submit(_work, job): job.number for job in jobs}
            while waiting:
                if stop():
                    halt.set()
                ready, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for k, rounds in _waiting(told):
                    if k not in ends:  # words may come after the result, by another way
                        report(runs[k], rounds)
                for future in ready:
                    k = waiting.pop(future)
                    ends[k] = ended = future.result()
                    if ended is not None:
                        report(runs[k], ended.rounds)
        except BaseException:
            halt.set()  # leaving the pool waits for whoever plays
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return ends


def _one(report: Report, run: Run) -> Callable[[int], None]:
    return lambda rounds: report(run, rounds)


class _Worker(NamedTuple):
    """What a process has for all of its runs."""

    told: Any
    """A queue of jobs' numbers and their rounds."""
    halt: Any
    """An event: stop now."""
    shelf: EngineShelf


_worker: _Worker | None = None
"""Of this process. A queue and an event cannot be sent with a job, only given to a process as it
begins, and an executor has no other place to keep what its initializer was given."""


def _begin(told: Any, halt: Any) -> None:
    global _worker
    _worker = _Worker(told, halt, EngineShelf())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `_deaf_children`, for systems without masks
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker whose command was killed would go on writing where the next command writes too."""
    connection.wait([parent])
    os._exit(1)


def _work(job: _Job) -> RunOutcome | None:
    assert _worker is not None
    told, halt, shelf = _worker
    last = 0.0

    def tell(rounds: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            told.put((job.number, rounds))

    return job.play(shelf, halt.is_set, tell)


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
