"""The clients of a round spread over Ray actors: one machine or many, CPUs or GPUs."""

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from kvib.checks import warn
from kvib.sim.data import Array
from kvib.sim.engines.base import BaseEngine
from kvib.sim.engines.engine import (
    SLOWLY,
    Engine,
    Evaluation,
    NoWorkerError,
    Summed,
)
from kvib.sim.engines.make import AUTO, make_engine
from kvib.sim.engines.place import Place, check_precision
from kvib.sim.local import Batches, LocalSGD, shared_out
from kvib.sim.task import Task
from kvib.types import BoolArray, FloatArray, IntArray

Make = Callable[[Task, LocalSGD], Engine]
"""What makes the engine of one worker, on the worker."""


@dataclass(frozen=True)
class Workers:
    """What a worker is.

    Args:
        count: how many at most; None for as many as the cluster has room for.
        cpus: cores of each.
        gpus: GPUs of each: 1 for one worker per GPU, 0.5 for two.
        patience: seconds after which a worker that has not answered is given up for the round;
            None to wait.
        precision: of torch.
        chunk_bytes: see `TorchEngine`.
    """

    count: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    patience: float | None = None
    precision: str = "float32"
    chunk_bytes: float = 16e9

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"workers: {self.count} is not a positive number")
        for name in ("cpus", "gpus"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} is not a number ≥ 0")
        if self.cpus == self.gpus == 0:
            raise ValueError("a worker needs cpus or gpus, or there is no end of them")
        check_precision(self.precision)
        if self.patience is not None and not self.patience > 0:
            raise ValueError(f"patience={self.patience} is not a positive number of seconds")

    @classmethod
    def at(cls, place: Place) -> "Workers":
        """Each with a GPU where the device is cuda; which one is up to Ray."""
        if place.device not in (None, "cpu", "cuda"):
            raise ValueError(
                f"device {place.device!r}: workers of Ray are on cpu, or on cuda with one GPU "
                "each, and Ray says which; give one of these"
            )
        return cls(
            count=place.workers,
            cpus=float(place.threads or 1),
            gpus=1.0 if place.device == "cuda" else 0.0,
            patience=place.patience,
            precision=place.precision,
            chunk_bytes=place.chunk_bytes,
        )

    def engine(self, task: Task, local: LocalSGD) -> Engine:
        """Of one worker."""
        device, threads = "cuda" if self.gpus else None, max(1, int(self.cpus))
        place = Place(device, self.precision, threads, self.chunk_bytes)
        return make_engine(AUTO, task, local, place)


STARTING = 60.0
"""Seconds that a round waits for workers that are being started."""
TRIES = 5
"""Workers that may die one after another at the same work before it is called hopeless."""
ROUNDS = 2
"""How often a round is begun in which nobody answers."""


class _Worker:
    """Lives on a node, trains the clients it is given, keeps nothing between rounds."""

    def __init__(self, task: Task, local: LocalSGD, make: Make) -> None:
        self.engine = make(task, local)

    def work(self, model: Array, batches: Batches, coefficients: FloatArray) -> tuple[Any, Any]:
        """Norms, and Σ coefficient_i g_i, rounded as models are; whoever adds sums does not."""
        engine = self.engine
        norms, total = engine.summed(engine.from_numpy(model), batches, coefficients)
        return norms, engine.to_numpy(total)

    def updates(self, model: Array, batches: Batches) -> Array:
        """Of each client, [m, d]; as many train together as the engine has memory for."""
        engine, here = self.engine, self.engine.from_numpy(model)
        found = np.empty((len(batches.steps), len(model)), np.float32)
        for at, part in engine.chunks(batches):
            found[at] = engine.to_numpy(engine.updates(here, part))
        return found

    def slow(self) -> str:
        """Why it trains slower than was asked for; empty if it does not."""
        return getattr(self.engine, "slow", "")

    def add(self, *totals: Array) -> Array:
        """The sum of what the workers of this node found, read from memory they share."""
        total = totals[0].astype(np.float64)
        for other in totals[1:]:
            total += other
        return total

    def initial(self, seed: int) -> Array:
        """A fresh model."""
        fresh: Array = self.engine.to_numpy(self.engine.initial(seed))
        return fresh

    def evaluate(self, model: Array, split: str) -> Evaluation:
        """How good it is."""
        return self.engine.evaluate(self.engine.from_numpy(model), split)

    def losses(self, model: Array, ids: IntArray) -> FloatArray:
        """How good it is for each of these clients."""
        return self.engine.losses(self.engine.from_numpy(model), ids)


def _not_silent(norms: FloatArray) -> FloatArray:
    """Of clients that were trained: not a number means that they diverged."""
    return np.where(np.isnan(norms), math.inf, norms)


class _Actor(NamedTuple):
    handle: Any
    node: str
    ready: Any
    """Comes when it lives; never while others hold what it needs."""


class _LostError(Exception):
    """A worker did not answer; says why."""


class RayEngine(BaseEngine):
    """Trains clients on the actors of a Ray cluster.

    The model goes to each node once, through the object store; updates are added up on the worker,
    then per node, so that one vector per node comes back. Whoever dies or is too slow did not
    answer: its clients are silent for the round, and the round goes on. At the beginning of every
    round workers are started where there is room: nodes may come and go.

    Args:
        task: what to train.
        local: how clients train.
        address: of the cluster: "auto", "ray://host:10001", …; without one the environment's
            RAY_ADDRESS, else a cluster of its own is started here.
        workers: what a worker is, and how many.
        make: what makes the engine of one worker; by default what `workers` says.
    """

    remote = True

    def __init__(
        self,
        task: Task,
        local: LocalSGD,
        address: str | None = None,
        workers: Workers = Workers(),
        make: Make | None = None,
    ) -> None:
        super().__init__(task, local)
        self.workers = workers
        self._ray = connected(address, workers)
        self.chunk = 1 << 20
        self.lost: list[tuple[int, str]] = []
        """Clients that did not answer, as (call, why); for reports."""
        self.slow: str | None = None
        """Why a worker trains slower than was asked for; None until one has trained."""
        self._calls = 0
        self._make = make or workers.engine
        self._given = [self._ray.put(value) for value in (task, local)]
        self._actor = self._ray.remote(_Worker)
        self._actors: list[_Actor] = []

    @classmethod
    def check(cls, place: Place) -> None:
        """Whether there can be such workers; the cluster itself is asked by the first run."""
        Workers.at(place)

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """On the cluster at this place's address."""
        return cls(task, local, place.address, Workers.at(place))

    # Workers

    def _gather(self) -> list[_Actor]:
        """Workers that live; new ones are started where there is room for them."""
        ray, workers = self._ray, self.workers
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._actors = [actor for actor in self._actors if actor.node in nodes]
        fresh: list[_Actor] = []
        for node, room in sorted(nodes.items()):
            fits = [
                room.get(kind, 0) // need
                for kind, need in (("CPU", workers.cpus), ("GPU", workers.gpus))
                if need
            ]
            here = sum(actor.node == node for actor in self._actors)
            for _ in range(int(min(fits)) - here):
                if workers.count is not None and len(self._actors) >= workers.count:
                    break
                fresh.append(self._start(node))
                self._actors.append(fresh[-1])
        if not self._actors:
            raise NoWorkerError(
                f"the cluster has no node with room for a worker of {workers.cpus:g} CPUs and "
                f"{workers.gpus:g} GPUs; lower cpus or gpus, or start a node"
            )
        if fresh:  # starting is not training: no patience is spent on it
            ray.wait([actor.ready for actor in fresh], num_returns=len(fresh), timeout=STARTING)
        ready = self._ready(0.0)
        while not ready:
            warn(
                f"no worker of {workers.cpus:g} CPUs and {workers.gpus:g} GPUs has started in "
                f"{STARTING:g} seconds: others hold the cluster, or it starts slowly; waiting"
            )
            ready = self._ready(STARTING)
        return ready

    def _ready(self, seconds: float) -> list[_Actor]:
        """Workers that live; waits for one at most so long."""
        refs = [actor.ready for actor in self._actors]
        many = 1 if seconds else len(refs)
        came, _ = self._ray.wait(refs, num_returns=many, timeout=seconds)
        return [actor for actor in self._actors if actor.ready in came]

    def _start(self, node: str) -> _Actor:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": self.workers.cpus, "num_gpus": self.workers.gpus}
        made = self._actor.options(scheduling_strategy=strategy, max_restarts=0, **options)
        handle = made.remote(*self._given, self._make)
        return _Actor(handle, node, handle.__ray_ready__.remote())

    def _drop(self, actor: _Actor) -> None:
        """A worker that died or is too slow; the next round starts another in its place."""
        self._actors = [a for a in self._actors if a is not actor]
        self._ray.kill(actor.handle)

    def _get(self, ref: Any, seconds: float | None = None) -> Any:
        """What a worker found; `_LostError` if it died, or its node, or was too slow."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=seconds)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if not isinstance(cause, errors.RayError):  # an error of ours, not of the cluster
                raise cause from error
            slow = isinstance(cause, errors.GetTimeoutError)
            raise _LostError("too slow" if slow else f"died ({cause})") from error

    def _shares(self, steps: IntArray, actors: Sequence[_Actor]) -> list[tuple[_Actor, IntArray]]:
        """Positions of clients for each worker that gets some."""
        pairs = zip(actors, shared_out(steps, len(actors)), strict=True)
        return [(actor, np.array(sorted(share))) for actor, share in pairs if share]

    def _wait(
        self, calls: list[tuple[_Actor, IntArray, Any]]
    ) -> list[tuple[_Actor, IntArray, Any]]:
        """The calls that came back in time, with what they brought; the others are dropped."""
        deadline = (
            None if self.workers.patience is None else time.monotonic() + self.workers.patience
        )
        came = []
        for actor, at, ref in calls:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                came.append((actor, at, self._get(ref, left)))
            except _LostError as error:
                self._lose(actor, at, error)
        if self.slow is None and came:
            self._ask_if_slow(came[0][0])
        return came

    def _ask_if_slow(self, actor: _Actor) -> None:
        """What a worker warns of stays where it is."""
        try:
            self.slow = str(self._get(actor.handle.slow.remote(), self.workers.patience))
        except _LostError:
            return  # another is asked next time
        if self.slow:
            warn(f"{SLOWLY}: {self.slow}")

    def _lose(self, actor: _Actor, at: IntArray, error: _LostError) -> None:
        self.lost += [(self._calls, str(error))] * len(at)
        self._drop(actor)

    # The contract

    def summed(self, model: Array, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms, NaN where a worker was lost, and Σ coefficient_i g_i of the others."""
        for _ in range(ROUNDS):
            norms, total = self._summed(model, batches, coefficients)
            if not np.isnan(norms).all() or not len(norms):
                return Summed(norms, total.astype(np.float32))
        raise self._no_worker()

    def _summed(self, model: Array, batches: Batches, coefficients: FloatArray) -> Summed:
        """Once, in double precision."""
        self._calls += 1
        norms, total = np.full(len(coefficients), math.nan), np.zeros(len(model))
        if not len(coefficients):
            return Summed(norms, total)
        actors, where = self._gather(), self._ray.put(model)
        calls, sums = [], {}
        for actor, at in self._shares(batches.steps, actors):
            work = actor.handle.work.options(num_returns=2)
            lengths, part = work.remote(where, batches.part(at), coefficients[at])
            calls.append((actor, at, lengths))
            sums[id(actor)] = part
        came = self._wait(calls)
        nodes: dict[str, list[tuple[_Actor, IntArray, Any]]] = {}
        for entry in came:
            nodes.setdefault(entry[0].node, []).append(entry)
        reduced = []
        for entries in nodes.values():
            adding = entries[0][0].handle.add.remote(*(sums[id(actor)] for actor, _, _ in entries))
            reduced.append((entries, adding))
        for entries, adding in reduced:
            try:
                total += self._get(adding, self.workers.patience)
            except _LostError:
                self._lost_sums(entries, sums, norms, total)
            else:
                for _, at, lengths in entries:
                    norms[at] = _not_silent(lengths)
        return Summed(norms, total)

    def _lost_sums(
        self,
        entries: list[tuple[_Actor, IntArray, Any]],
        sums: dict[int, Any],
        norms: FloatArray,
        total: FloatArray,
    ) -> None:
        """The worker that added up a node's sums died: what is still there comes one by one."""
        self._drop(entries[0][0])
        for actor, at, lengths in entries:
            try:
                total += self._get(sums[id(actor)], self.workers.patience)
            except _LostError as error:
                self._lose(actor, at, error)
            else:
                norms[at] = _not_silent(lengths)

    def answers(self, model: Array, batches: Batches) -> tuple[BoolArray, Array]:
        """Who answered, and their updates, for samplers that look at each."""
        for _ in range(ROUNDS):
            came, found = self._answers(model, batches)
            if came.any() or not len(came):
                return came, found
        raise self._no_worker()

    def _answers(self, model: Array, batches: Batches) -> tuple[BoolArray, Array]:
        """Once."""
        self._calls += 1
        m = len(batches.steps)
        found, came = np.zeros((m, len(model)), np.float32), np.zeros(m, np.bool_)
        if m:
            actors, where = self._gather(), self._ray.put(model)
            shares = self._shares(batches.steps, actors)
            calls = [(a, at, a.handle.updates.remote(where, batches.part(at))) for a, at in shares]
            for _, at, part in self._wait(calls):
                found[at], came[at] = part, True
        return came, found[came]

    def updates(self, model: Array, batches: Batches) -> Array:
        """g_i of every client; whoever is lost is trained again elsewhere."""
        came, found = self._answers(model, batches)
        whole = np.empty((len(came), len(model)), np.float32)
        whole[came] = found
        for _ in range(TRIES):
            left = np.flatnonzero(~came)
            if not len(left):
                return whole
            again, found = self._answers(model, batches.part(left))
            whole[left[again]], came[left[again]] = found, True
        raise self._no_worker()

    def _no_worker(self) -> "NobodyError":
        return NoWorkerError(
            f"no worker answered, again and again: {self.lost[-1][1]}; look at the cluster, or "
            "raise patience"
        )

    def _ask(self, method: str, *given: Any) -> Any:
        """Any worker; the next one if it dies or is too slow."""
        why, patience = "", self.workers.patience
        for _ in range(TRIES):
            actor = self._gather()[0]
            try:
                return self._get(getattr(actor.handle, method).remote(*given), patience)
            except _LostError as error:
                why = str(error)
                self._drop(actor)
        raise NoWorkerError(f"no worker answers, again and again: {why}")

    def initial(self, seed: int) -> Array:
        """A fresh model, the same as in process."""
        fresh: Array = self._ask("initial", seed)
        return np.array(fresh)  # what comes from the object store cannot be written to

    def evaluate(self, model: Array, split: str) -> Evaluation:
        """On one worker."""
        found: Evaluation = self._ask("evaluate", self._ray.put(model), split)
        return found

    def losses(self, model: Array, ids: IntArray) -> FloatArray:
        """On one worker."""
        found: FloatArray = self._ask("losses", self._ray.put(model), ids)
        return found

    def close(self) -> None:
        """End the workers; the cluster stays."""
        for actor in list(self._actors):
            self._drop(actor)


def connected(address: str | None, workers: Workers) -> Any:
    """The module `ray`, connected to a cluster."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it will do anyway
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "the Ray engine needs Ray; pip install '.[ray]' in a clone of kvib"
        ) from error
    if ray.is_initialized():
        return ray
    # not None: Ray would join whatever cluster it finds on the machine
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    if own and workers.count is not None and workers.cpus:
        own["num_cpus"] = math.ceil(workers.count * workers.cpus)
    _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=40, **own)
    except (ConnectionError, ValueError) as error:
        raise _no_cluster(address, error) from error
    return ray


def _reach(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # "auto", "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, ValueError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ValueError:
    return ValueError(
        f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or leave the "
        "address out to start one here"
    )
