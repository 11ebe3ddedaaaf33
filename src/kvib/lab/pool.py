"""Carries out many runs, one after another or in several processes."""

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

INTERVAL = 0.2
"""Seconds between two looks at the workers, and between two reports of a worker."""

Report = Callable[[Run, int], None]
"""A function of a run and the number of its finished rounds, which shows progress."""


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
    """Carry out the unfinished runs, each in its folder under `out`/experiment.

    Args:
        runs: The runs, in the order in which they begin.
        out: The folder of the experiments' folders.
        machine: The machine that carries them out.
        processes: The number of runs at the same time.
        shelf: The shelf with the engine of an earlier call. It is used if there is one process.
        stop_after: The number of seconds after which to save and stop.
        stop: A function that is called now and then. True means to save and stop.
        report: A function that shows progress.
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
    """A run that is not finished."""

    number: int
    """The place of the run among all runs."""
    run: Run
    folder: Path
    """The folder of the experiment's runs."""
    machine: Machine
    deadline: float
    """The time by `time.monotonic` at which to save and stop."""

    def play(
        self, shelf: EngineShelf, stop: Callable[[], bool], report: Callable[[int], None]
    ) -> RunOutcome | None:
        """Carry out the run. None means that the deadline or Ctrl-C came before it began."""
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
"""The outcomes of runs by the number of their job."""


def _in_turn(
    jobs: list[_Job], shelf: EngineShelf, stop: Callable[[], bool], report: Report
) -> Ends:
    """The outcomes of jobs that this process carries out one after another."""
    return {job.number: job.play(shelf, stop, _for_run(report, job.run)) for job in jobs}


def _at_once(
    jobs: list[_Job],
    processes: int,
    threads: int | None,
    stop: Callable[[], bool],
    report: Report,
) -> Ends:
    """The outcomes of jobs that several processes carry out.

    Progress comes through a queue and outcomes come through futures.
    """
    spawn = multiprocessing.get_context("spawn")
    progress, halt = spawn.Queue(), spawn.Event()
    runs, ends = {job.number: job.run for job in jobs}, dict[int, RunOutcome | None]()
    options: dict[str, Any] = {"initializer": _begin, "initargs": (progress, halt)}
    with _few_threads(threads), ProcessPoolExecutor(processes, spawn, **options) as pool:
        try:
            with _interrupts_blocked():
                pending = {pool.submit(_work, job): job.number for job in jobs}
            while pending:
                if stop():
                    halt.set()
                ready, _ = wait(pending, timeout=INTERVAL, return_when=FIRST_COMPLETED)
                for k, rounds in _queued(progress):
                    if k not in ends:  # the queue may deliver progress after the outcome
                        report(runs[k], rounds)
                for future in ready:
                    k = pending.pop(future)
                    ends[k] = ended = future.result()
                    if ended is not None:
                        report(runs[k], ended.rounds)
        except BaseException:
            halt.set()  # leaving the pool waits for the workers, so they must stop
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return ends


def _for_run(report: Report, run: Run) -> Callable[[int], None]:
    """The report of one run, as a function of its finished rounds."""
    return lambda rounds: report(run, rounds)


class _Worker(NamedTuple):
    """The objects that a process keeps for all of its runs."""

    progress: Any
    """A queue of pairs: the number of a job, and its finished rounds."""
    halt: Any
    """An event. When it is set, the run saves and stops."""
    shelf: EngineShelf
    """The engine of the last run, for a run that can use it too."""


_worker: _Worker | None = None
"""The worker of this process.

A queue and an event cannot be sent with a job. They can only be given to a process when it begins,
and a global variable is the only place where an executor's initializer can keep them.
"""


def _begin(progress: Any, halt: Any) -> None:
    """Prepare a worker process."""
    global _worker
    _worker = _Worker(progress, halt, EngineShelf())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems without `_interrupts_blocked`
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has ended.

    Otherwise the workers of a killed command would write into the folders of the next command.
    """
    connection.wait([parent])
    os._exit(1)


def _work(job: _Job) -> RunOutcome | None:
    """The outcome of a job in a worker process, None if it did not begin."""
    assert _worker is not None
    progress, halt, shelf = _worker
    last = 0.0

    def report(rounds: int) -> None:
        nonlocal last
        if time.monotonic() - last > INTERVAL:
            last = time.monotonic()
            progress.put((job.number, rounds))

    return job.play(shelf, halt.is_set, report)


def _queued(progress: Any) -> Iterator[tuple[int, int]]:
    """Yield the pairs that are in the queue now."""
    while True:
        try:
            yield progress.get_nowait()
        except queue.Empty:
            return


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start workers that ignore Ctrl-C, even while they are still importing.

    A terminal sends Ctrl-C to all of its processes. Only the parent handles it.
    """
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
    """Start workers whose libraries use this many threads. None means the library's default.

    Libraries read these variables when they are first imported, so workers must start with them.
    """
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
