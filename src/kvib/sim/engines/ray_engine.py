"""The engine that spreads the clients of a round over Ray actors: one machine or many."""

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
"""A function that makes the engine of one worker, on the worker."""
STARTING = 60.0
"""Seconds that a round waits for workers that are being started."""
CONNECTING = 10.0
"""Seconds that a cluster may take to accept a connection. Ray itself would try for minutes."""
TRIES = 5
"""Workers that may die one after another at the same work before the run stops."""
ATTEMPTS = 2
"""The number of times that a round is begun in which no worker answers."""
MANY = 1 << 20
"""Clients of one chunk: in effect all, since each worker makes chunks of its own."""


@dataclass(frozen=True)
class Workers:
    """The number of workers and the resources of each.

    Args:
        count: The number of workers at most. None means as many as the cluster has room for.
        cpus: The cores of each worker.
        gpus: The GPUs of each worker: 1 for one worker per GPU, 0.5 for two.
        patience: The seconds after which a worker that has not answered is given up for the round.
            None means no limit.
        precision: The precision of torch's matrix products.
        chunk_bytes: The bytes that the updates and activations of one chunk may take, as in
            `TorchEngine`.
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
        """Workers for a place. Each has a GPU where the device is cuda, and Ray chooses which."""
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
        """The engine of one worker."""
        device, threads = "cuda" if self.gpus else None, max(1, int(self.cpus))
        place = Place(device, self.precision, threads, self.chunk_bytes)
        return make_engine(AUTO, task, local, place)


class _Worker:
    """An actor on a node: it trains the clients it is given and keeps nothing between rounds."""

    def __init__(self, task: Task, local: LocalSGD, make: Make) -> None:
        self.engine = make(task, local)

    def work(self, model: Array, batches: Batches, coefficients: FloatArray) -> tuple[Any, Any]:
        """Norms, and Σ coefficient_i g_i in the precision of models. `add` sums in double."""
        engine = self.engine
        norms, total = engine.summed(engine.from_numpy(model), batches, coefficients)
        return norms, engine.to_numpy(total)

    def updates(self, model: Array, batches: Batches) -> Array:
        """g_i of each client, [m, d]. As many train together as the engine has memory for."""
        engine, here = self.engine, self.engine.from_numpy(model)
        found = np.empty((len(batches.steps), len(model)), np.float32)
        for at, part in engine.chunks(batches):
            found[at] = engine.to_numpy(engine.updates(here, part))
        return found

    def slow(self) -> str:
        """The reason why the engine trains slower than was asked for. Empty if it does not."""
        return getattr(self.engine, "slow", "")

    def add(self, *totals: Array) -> Array:
        """The sum of the totals of this node's workers, read from memory that they share."""
        total = totals[0].astype(np.float64)
        for other in totals[1:]:
            total += other
        return total

    def initial(self, seed: int) -> Array:
        """A fresh model."""
        fresh: Array = self.engine.to_numpy(self.engine.initial(seed))
        return fresh

    def evaluate(self, model: Array, split: str) -> Evaluation:
        """The mean loss and accuracy of a model on "train" or "test" data."""
        return self.engine.evaluate(self.engine.from_numpy(model), split)

    def losses(self, model: Array, ids: IntArray) -> FloatArray:
        """The mean loss of each of these clients on its own data, [m]."""
        return self.engine.losses(self.engine.from_numpy(model), ids)


def _not_silent(norms: FloatArray) -> FloatArray:
    """The norms of clients that were trained, with ∞ for NaN: they diverged, but did answer."""
    return np.where(np.isnan(norms), math.inf, norms)


class _Actor(NamedTuple):
    """A worker as the driver sees it."""

    handle: Any
    """Ray's handle of the actor."""
    node: str
    """The id of the node that the worker is on."""
    ready: Any
    """A reference that resolves when the worker lives, not while others hold its resources."""


class _LostError(Exception):
    """A worker did not answer. The message says why."""


class RayEngine(BaseEngine):
    """An engine that trains clients on the actors of a Ray cluster.

    The model goes to each node once, through the object store. Updates are added up on the worker,
    then per node, so that one vector per node comes back. The clients of a worker that dies or is
    too slow are silent for the round, and the round continues without them. At the beginning of
    every round workers are started where there is room, so that nodes may leave and join.

    Args:
        task: The task to train.
        local: How clients train.
        address: The address of the cluster: "auto", "ray://host:10001", … None means the
            environment's RAY_ADDRESS, else a cluster that is started on this machine.
        workers: The number of workers and the resources of each.
        make: A function that makes the engine of one worker. The default is `workers.engine`.
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
        self.chunk = MANY
        self.lost: list[tuple[int, str]] = []
        """One entry (call, reason) per client that did not answer, for reports."""
        self.slow: str | None = None
        """The reason why a worker trains slower than was asked for. None until one has trained."""
        self._calls = 0
        self._make = make or workers.engine
        self._shared = [self._ray.put(value) for value in (task, local)]
        self._actor = self._ray.remote(_Worker)
        self._actors: list[_Actor] = []

    @classmethod
    def check(cls, place: Place) -> None:
        """Refuse a place that workers cannot have. The first run asks the cluster itself."""
        Workers.at(place)

    @classmethod
    def at(cls, task: Task, local: LocalSGD, place: Place) -> Self:
        """An engine on the cluster at this place's address."""
        return cls(task, local, place.address, Workers.at(place))

    # Workers

    def _gather(self) -> list[_Actor]:
        """The workers that live, after new ones were started where there is room for them."""
        ray, workers = self._ray, self.workers
        # Workers of nodes that have left are forgotten.
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._actors = [actor for actor in self._actors if actor.node in nodes]
        # Each node gets as many workers as its resources allow, up to `workers.count` in all.
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
        # Starting has a time limit of its own, which is not taken from the workers' patience.
        if fresh:
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
        """The workers that live, after a wait of at most these seconds for the first."""
        refs = [actor.ready for actor in self._actors]
        many = 1 if seconds else len(refs)
        arrived, _ = self._ray.wait(refs, num_returns=many, timeout=seconds)
        return [actor for actor in self._actors if actor.ready in arrived]

    def _start(self, node: str) -> _Actor:
        """A new worker on this node, which may not live yet."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": self.workers.cpus, "num_gpus": self.workers.gpus}
        made = self._actor.options(scheduling_strategy=strategy, max_restarts=0, **options)
        handle = made.remote(*self._shared, self._make)
        return _Actor(handle, node, handle.__ray_ready__.remote())

    def _drop(self, actor: _Actor) -> None:
        """End a worker that died or is too slow. The next round starts another in its place."""
        self._actors = [a for a in self._actors if a is not actor]
        self._ray.kill(actor.handle)

    def _get(self, ref: Any, seconds: float | None = None) -> Any:
        """The result of a worker's call.

        Raises `_LostError` if the worker or its node died, or if the worker was too slow.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=seconds)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if not isinstance(cause, errors.RayError):  # an error of the engine, not of the cluster
                raise cause from error
            slow = isinstance(cause, errors.GetTimeoutError)
            raise _LostError("too slow" if slow else f"died ({cause})") from error

    def _shares(self, steps: IntArray, actors: Sequence[_Actor]) -> list[tuple[_Actor, IntArray]]:
        """The positions of its clients for each worker that gets any."""
        pairs = zip(actors, shared_out(steps, len(actors)), strict=True)
        return [(actor, np.array(sorted(share))) for actor, share in pairs if share]

    def _wait(
        self, calls: list[tuple[_Actor, IntArray, Any]]
    ) -> list[tuple[_Actor, IntArray, Any]]:
        """The calls that returned in time, with their results. The other workers are dropped."""
        deadline = (
            None if self.workers.patience is None else time.monotonic() + self.workers.patience
        )
        arrived = []
        for actor, at, ref in calls:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                arrived.append((actor, at, self._get(ref, left)))
            except _LostError as error:
                self._lose(actor, at, error)
        if self.slow is None and arrived:
            self._ask_if_slow(arrived[0][0])
        return arrived

    def _ask_if_slow(self, actor: _Actor) -> None:
        """Warn if this worker trains slowly. Its own warning is not seen on this machine."""
        try:
            self.slow = str(self._get(actor.handle.slow.remote(), self.workers.patience))
        except _LostError:
            return  # another is asked next time
        if self.slow:
            warn(f"{SLOWLY}: {self.slow}")

    def _lose(self, actor: _Actor, at: IntArray, error: _LostError) -> None:
        """Note that the clients of a worker did not answer, and drop the worker."""
        self.lost += [(self._calls, str(error))] * len(at)
        self._drop(actor)

    # The contract of `Engine`

    def summed(self, model: Array, batches: Batches, coefficients: FloatArray) -> Summed:
        """Norms, NaN where a worker was lost, and Σ coefficient_i g_i of the other clients."""
        for _ in range(ATTEMPTS):
            norms, total = self._summed(model, batches, coefficients)
            if not np.isnan(norms).all() or not len(norms):
                return Summed(norms, total.astype(np.float32))
        raise self._no_worker()

    def _summed(self, model: Array, batches: Batches, coefficients: FloatArray) -> Summed:
        """One attempt at `summed`, in double precision."""
        self._calls += 1
        norms, total = np.full(len(coefficients), math.nan), np.zeros(len(model))
        if not len(coefficients):
            return Summed(norms, total)
        # Every worker trains its share of the clients and adds up their updates.
        actors, where = self._gather(), self._ray.put(model)
        calls, sums = [], {}
        for actor, at in self._shares(batches.steps, actors):
            work = actor.handle.work.options(num_returns=2)
            lengths, part = work.remote(where, batches.part(at), coefficients[at])
            calls.append((actor, at, lengths))
            sums[id(actor)] = part
        arrived = self._wait(calls)
        # One worker per node adds up the sums of its node.
        nodes: dict[str, list[tuple[_Actor, IntArray, Any]]] = {}
        for entry in arrived:
            nodes.setdefault(entry[0].node, []).append(entry)
        reduced = []
        for entries in nodes.values():
            adding = entries[0][0].handle.add.remote(*(sums[id(actor)] for actor, _, _ in entries))
            reduced.append((entries, adding))
        # One vector per node comes back.
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
        """Fetch the sums of a node one by one: the worker that added them up died."""
        self._drop(entries[0][0])
        for actor, at, lengths in entries:
            try:
                total += self._get(sums[id(actor)], self.workers.patience)
            except _LostError as error:
                self._lose(actor, at, error)
            else:
                norms[at] = _not_silent(lengths)

    def answers(self, model: Array, batches: Batches) -> tuple[BoolArray, Array]:
        """Which clients answered, [m], and their updates, for samplers that look at each."""
        for _ in range(ATTEMPTS):
            arrived, found = self._answers(model, batches)
            if arrived.any() or not len(arrived):
                return arrived, found
        raise self._no_worker()

    def _answers(self, model: Array, batches: Batches) -> tuple[BoolArray, Array]:
        """One attempt at `answers`."""
        self._calls += 1
        m = len(batches.steps)
        found, arrived = np.zeros((m, len(model)), np.float32), np.zeros(m, np.bool_)
        if m:
            actors, where = self._gather(), self._ray.put(model)
            shares = self._shares(batches.steps, actors)
            calls = [(a, at, a.handle.updates.remote(where, batches.part(at))) for a, at in shares]
            for _, at, part in self._wait(calls):
                found[at], arrived[at] = part, True
        return arrived, found[arrived]

    def updates(self, model: Array, batches: Batches) -> Array:
        """g_i of every client, [m, d]. Lost clients are trained again on other workers."""
        arrived, found = self._answers(model, batches)
        whole = np.empty((len(arrived), len(model)), np.float32)
        whole[arrived] = found
        for _ in range(TRIES):
            left = np.flatnonzero(~arrived)
            if not len(left):
                return whole
            again, found = self._answers(model, batches.part(left))
            whole[left[again]], arrived[left[again]] = found, True
        raise self._no_worker()

    def _no_worker(self) -> NoWorkerError:
        """The error for work that no worker has done."""
        return NoWorkerError(
            f"no worker answered, again and again: {self.lost[-1][1]}; look at the cluster, or "
            "raise patience"
        )

    def _ask(self, method: str, *arguments: Any) -> Any:
        """The result of a method of any worker, or of the next if it dies or is too slow."""
        why, patience = "", self.workers.patience
        for _ in range(TRIES):
            actor = self._gather()[0]
            try:
                return self._get(getattr(actor.handle, method).remote(*arguments), patience)
            except _LostError as error:
                why = str(error)
                self._drop(actor)
        raise NoWorkerError(f"no worker answers, again and again: {why}")

    def initial(self, seed: int) -> Array:
        """A fresh model, the same as that of an engine in this process."""
        fresh: Array = self._ask("initial", seed)
        return np.array(fresh)  # arrays of the object store are read-only

    def evaluate(self, model: Array, split: str) -> Evaluation:
        """The mean loss and accuracy of a model, computed by one worker."""
        found: Evaluation = self._ask("evaluate", self._ray.put(model), split)
        return found

    def losses(self, model: Array, ids: IntArray) -> FloatArray:
        """The mean loss of each of these clients on its own data, computed by one worker, [m]."""
        found: FloatArray = self._ask("losses", self._ray.put(model), ids)
        return found

    def close(self) -> None:
        """End the workers. The cluster stays."""
        for actor in list(self._actors):
            self._drop(actor)


def connected(address: str | None, workers: Workers) -> Any:
    """The module `ray`, connected to a cluster."""
    # The default of later versions of Ray, set here to spare its warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "the Ray engine needs Ray; pip install '.[ray]' in a clone of kvib"
        ) from error
    if ray.is_initialized():
        return ray
    # With None, Ray would join whatever cluster it finds on the machine.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    if own and workers.count is not None and workers.cpus:
        own["num_cpus"] = math.ceil(workers.count * workers.cpus)
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=40, **own)
    except (ConnectionError, ValueError) as error:
        raise _no_cluster(address, error) from error
    return ray


def _check_address(address: str) -> None:
    """Refuse an address that accepts no connection, where Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # "auto", "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTING).close()
    except (OSError, OverflowError, ValueError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ValueError:
    """The error for an address without a cluster."""
    return ValueError(
        f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or leave the "
        "address out to start one here"
    )
