"""The round loop: one for all samplers, all tasks, all engines."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from kvib import rows, storage
from kvib.cohort import Arrays, BoolArray, Cohort, FloatArray
from kvib.estimation import Coefficients, NotFiniteError, among_heard
from kvib.estimators import unbiased
from kvib.randomness import generator
from kvib.rates import YOUNGER, EstimatedRate
from kvib.sampler import Sampler
from kvib.sim import records
from kvib.sim.engines.engine import Engine, NobodyError, Vector
from kvib.sim.exact import FullRound, measures, needs_gram
from kvib.sim.local import LocalSGD, plan
from kvib.sim.records import Record
from kvib.sim.server import Memory, ServerOptimiser, ServerSGD
from kvib.sim.stragglers import Stakes, Stragglers
from kvib.sim.task import Task
from kvib.variance import deviation


class DivergedError(ValueError):
    """Training has left the numbers; the last checkpoint is from before."""


def _diverged(client: int, t: int) -> DivergedError:
    return DivergedError(
        f"client {client} diverged in round {t}: lower the learning rate, or clip; the last "
        "checkpoint is from before"
    )


LARGEST_NORM = float(np.finfo(np.float32).max) ** 0.5
"""Beyond it squares are no numbers for engines in single precision."""
TRIES = 5
"""How often clients are trained again that must be heard and were lost."""
LEISURE = 20
"""Between two checkpoints pass as many times the seconds that one takes."""


class Simulation:
    """A federated run: draw, train, estimate, step, evaluate, record.

    Examples:
        >>> import kvib
        >>> from kvib.sim import LinearEngine, LocalSGD, Simulation, synthetic
        >>> task, local = synthetic(), LocalSGD(learning_rate=0.02, batch_size=64)
        >>> sampler = kvib.Sampler(kvib.KVib(rounds=3), task.weights, budget=10)
        >>> simulation = Simulation(task, LinearEngine(task, local), sampler, local)
        >>> [record.round for record in simulation.run(rounds=3)]
        [0, 1, 2]

    Args:
        task: the clients, their data, the model.
        engine: who trains.
        sampler: who is drawn.
        local: how clients train; the same as the engine's.
        server: how the step is applied.
        coefficients: `kvib.unbiased` or `kvib.self_normalised`.
        evaluate_every: rounds between evaluations on the test data; 0 for never.
        train_loss_every: rounds between evaluations on all training data, which cost more.
        exact_every: rounds between exact metrics, for which all clients train; 0 for never. They
            are NaN in rounds in which a client diverges that nobody drew.
        seed: of the initial model and of all batches.
        gram_memory: bytes that the updates of all clients may take, N·d·4, where an exact variance
            needs their inner products (fixed-size draws); beyond it that variance is NaN.
        response: the true probability that a client which was drawn answers, a number or one per
            client. By default the sampler's own, where it knows one, else 1.
        availability: the true probability that a client is there when the round is drawn, the same.
    """

    def __init__(
        self,
        task: Task,
        engine: Engine,
        sampler: Sampler,
        local: LocalSGD,
        server: ServerOptimiser | None = None,
        *,
        coefficients: Coefficients = unbiased,
        evaluate_every: int = 1,
        train_loss_every: int = 0,
        exact_every: int = 0,
        seed: int = 0,
        gram_memory: float = 16e9,
        response: ArrayLike | None = None,
        availability: ArrayLike | None = None,
    ) -> None:
        if len(sampler) != len(task):
            raise ValueError(f"the sampler has {len(sampler)} clients, the task {len(task)}")
        if getattr(engine, "task", task) is not task or getattr(engine, "local", local) != local:
            raise ValueError("the engine was made for another task or other local training")
        self.task, self.engine, self.sampler, self.local = task, engine, sampler, local
        self.server = ServerSGD() if server is None else server
        self.coefficients, self.seed = coefficients, seed
        self.evaluate_every, self.train_loss_every = evaluate_every, train_loss_every
        self.exact_every, self.gram_memory = exact_every, gram_memory
        self.model: Vector = engine.initial(seed)
        self.memory: Memory = self.server.start(self.model)
        self.records: list[Record] = []
        self.seconds: list[dict[str, float]] = []
        self._options = _options(sampler)
        self._stragglers = Stragglers(sampler, response, availability)

    def round(self) -> Record:
        """Play one round."""
        t, clock = len(self.records), _Clock()
        measured = self._evaluate(t)
        clock.lap("evaluate")
        there = self._stragglers.there(self.sampler, self.seed, t)
        stakes = self._stragglers.stakes(self.sampler, there)
        norms, exact = self._look_ahead(t, there, stakes)
        measured |= exact
        clock.lap("exact")
        cohort = self.sampler.draw(there, norms=norms)
        clock.lap("draw")
        trained = self._train(cohort, t, self._stragglers.heard(cohort.ids, self.seed, t))
        clock.lap("train")
        memory, model = self.server.step(self.memory, self.model, trained.d)
        if not np.isfinite(self.engine.norms(model[None])).all():
            raise DivergedError(
                f"the model left the numbers in round {t}: lower the server's learning rate; the "
                "last checkpoint is from before"
            )
        self.memory, self.model = memory, model
        clock.lap("update")
        record = Record(
            round=t,
            clients=len(cohort),
            available=int(np.count_nonzero(stakes.drawable)),
            answered=int(np.count_nonzero(~np.isnan(trained.norms))),
            estimated_variance=trained.variance,
            step_norm=float(self.engine.norms(trained.d[None])[0]),
            cut=trained.cut,
            ids=cohort.ids,
            norms=trained.norms,
            **measured,
        )
        self.records.append(record)
        self.seconds.append(clock.laps)
        return record

    def _due(self, every: int, t: int) -> bool:
        return every > 0 and t % every == 0

    def _evaluate(self, t: int) -> dict[str, float]:
        measured = {}
        if self._due(self.evaluate_every, t):
            loss, accuracy = self.engine.evaluate(self.model, "test")
            measured = {"loss": loss, "accuracy": accuracy}
        if self._due(self.train_loss_every, t):
            measured["train_loss"] = self.engine.evaluate(self.model, "train").loss
        losses = [value for name, value in measured.items() if name != "accuracy"]
        if not all(map(math.isfinite, losses)):
            raise DivergedError(
                f"the loss is not a number at round {t}: lower the learning rate, or raise the "
                "budget; the last checkpoint is from before"
            )
        return measured

    def _look_ahead(
        self, t: int, there: BoolArray | None, stakes: Stakes
    ) -> tuple[FloatArray | None, dict[str, float]]:
        """Norms of all clients, if the policy draws by them; exact measures, if they are due."""
        sampler, exact = self.sampler, self._due(self.exact_every, t)
        if not exact and not sampler.policy.needs_norms:
            return None, {}
        everybody = self._everybody(t, stakes, with_gram=exact and needs_gram(sampler.procedure))
        norms = everybody.norms if sampler.policy.needs_norms else None
        if norms is not None and not everybody.sound:
            raise _diverged(int(np.flatnonzero(~np.isfinite(norms))[0]), t)
        if not exact or not everybody.sound:
            return norms, {}
        p, rng = (
            sampler.probabilities(there, norms=norms),
            generator(self.seed, t, "exact variance"),
        )
        return norms, measures(sampler, everybody, stakes, p, self.coefficients, rng)

    def _train(self, cohort: Cohort, t: int, heard: BoolArray) -> "_Trained":
        """Local training of those of the drawn who answer, and the estimate."""
        if self._sum_suffices(int(np.count_nonzero(heard))):
            return self._train_summed(cohort, t, heard)
        try:
            return self._train_each(cohort, t, heard)
        except NotFiniteError as error:
            raise _diverged(error.client, t) from error

    def _train_each(self, cohort: Cohort, t: int, heard: BoolArray) -> "_Trained":
        """Local training of those who answer, chunk by chunk into the estimate."""
        estimation, answering = self.sampler.begin(cohort, self.coefficients), np.flatnonzero(heard)
        gram = None if len(answering) else np.empty((0, 0))
        for low in range(0, len(answering), self.engine.chunk):
            at = np.zeros(len(cohort), dtype=np.bool_)
            at[answering[low : low + self.engine.chunk]] = True
            batches = plan(self.task.train, cohort.ids[at], self.local, self.seed, t)
            came, updates = self.engine.answers(self.model, batches)
            at[at] = came
            residuals = estimation.add(at, updates)
            bad = np.flatnonzero(estimation.norms > LARGEST_NORM)
            if len(bad):
                raise _diverged(int(cohort.ids[bad[0]]), t)
            if len(answering) <= self.engine.chunk:
                gram = self.engine.gram(residuals)
        variance = deviation(cohort, estimation.norms, gram).value
        d = rows.formed(self.model, estimation.finish())  # a vector also where no client was heard
        return _Trained(d, estimation.norms, variance, estimation.cut)

    def _sum_suffices(self, answers: int) -> bool:
        """Whether nobody looks at single updates, and they are not at hand together anyway."""
        sampler = self.sampler
        plain = sampler.remembered is None and sampler.guard is None and not sampler.sketches.size
        return plain and (answers > self.engine.chunk or self.engine.remote)

    def _train_summed(self, cohort: Cohort, t: int, heard: BoolArray) -> "_Trained":
        """Local training of those who answer, each update added up and forgotten."""
        batches = plan(self.task.train, cohort.ids[heard], self.local, self.seed, t)
        factors, norms = self.coefficients(cohort)[heard], np.full(len(cohort), math.nan)
        norms[heard], d = self.engine.summed(self.model, batches, factors)
        lost = np.isnan(norms) & self.engine.remote  # no other engine loses clients
        bad = np.flatnonzero(~(norms <= LARGEST_NORM) & heard & ~lost)
        if len(bad):
            raise _diverged(int(cohort.ids[bad[0]]), t)
        self.sampler.update(cohort, norms)
        d = d * among_heard(self.coefficients, cohort, heard & ~lost)
        return _Trained(d, norms, deviation(cohort, norms, None).value, 0.0)

    def _everybody(self, t: int, stakes: Stakes, with_gram: bool) -> FullRound:
        """All clients train from the current model, as in full participation."""
        N, weights = len(self.task), self.sampler.weights
        norms, mean, off, kept = np.empty(N), self.model * 0, self.model * 0, []
        with_gram = with_gram and N * self.model.nbytes <= self.gram_memory
        if self.engine.remote and not with_gram and self.sampler.remembered is None:
            return self._everybody_summed(t, stakes)
        taken = weights * stakes.taken * stakes.drawable
        for low in range(0, N, self.engine.chunk):
            ids = np.arange(low, min(low + self.engine.chunk, N))
            batches = plan(self.task.train, ids, self.local, self.seed, t)
            updates = new = self.engine.updates(self.model, batches)
            if self.sampler.remembered is not None:  # only what is new is sampled
                new = self.sampler.remembered.residuals(ids, updates)
            norms[ids] = self.engine.norms(new)
            mean = mean + self.engine.combine(taken[ids], new)
            if not stakes.unbiased:
                off = off + self.engine.combine((weights * stakes.off)[ids], new)
                off = off - self.engine.combine((weights * (1 - stakes.stands))[ids], updates)
            if with_gram:
                kept.append(new)
        gram = None
        if with_gram and np.isfinite(norms).all():
            gram = np.block([[self.engine.gram(a, b) for b in kept] for a in kept])
            gram *= np.outer(weights, weights)
        return FullRound(norms, self._length(mean) ** 2, self._length(off), gram)

    def _length(self, vector: Vector) -> float:
        return float(self.engine.norms(vector[None])[0])

    def _everybody_summed(self, t: int, stakes: Stakes) -> FullRound:
        """The same where updates are far away."""
        weights, off = self.sampler.weights, 0.0
        norms, mean = self._summed(t, weights * stakes.taken * stakes.drawable)
        if not stakes.unbiased:  # then all clients train once more
            off = self._length(self._summed(t, weights * (stakes.off + stakes.stands - 1))[1])
        return FullRound(norms, self._length(mean) ** 2, off, None)

    def _summed(self, t: int, coefficients: FloatArray) -> tuple[FloatArray, Vector]:
        """Norms of all clients, and Σ coefficient·g; who was lost is trained again."""
        N = len(self.task)
        batches = plan(self.task.train, np.arange(N), self.local, self.seed, t)
        norms, total = np.full(N, math.nan), self.model * 0
        for _ in range(TRIES):
            left = np.flatnonzero(np.isnan(norms))
            if not len(left):
                return norms, total
            found = self.engine.summed(self.model, batches.part(left), coefficients[left])
            norms[left], total = found.norms, total + found.total
        if np.isnan(norms).any():
            client = int(np.flatnonzero(np.isnan(norms))[0])
            raise NobodyError(
                f"client {client} was lost {TRIES} times in round {t}, and exact metrics need "
                "everybody; look at the cluster, or raise patience; the last checkpoint is from "
                "before"
            )
        return norms, total

    def run(
        self,
        rounds: int,
        folder: str | os.PathLike[str] | None = None,
        *,
        checkpoint_seconds: float = 10.0,
        stop_after: float = math.inf,
    ) -> Iterator[Record]:
        """Play until `rounds` rounds are done; yields each record.

        Args:
            rounds: how many in all, those of an earlier start included.
            folder: where to keep checkpoints; a run found there is continued exactly.
            checkpoint_seconds: how often to save, less often where that takes long; 0: always.
            stop_after: seconds after which to save and stop, to go on later or elsewhere.
        """
        path = None if folder is None else Path(folder) / "checkpoint.npz"
        if path is not None:
            if type(self.sampler) is not Sampler:
                raise ValueError(
                    f"a {type(self.sampler).__name__} sampler keeps a file of its own, which a "
                    "checkpoint cannot turn back; give a plain Sampler, or no folder"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self.load(path)
        begin = time.monotonic()
        due = begin + checkpoint_seconds
        while len(self.records) < rounds:
            record = self.round()
            now = time.monotonic()
            stop = now - begin >= stop_after or len(self.records) == rounds
            if path is not None and (stop or now >= due):
                self.save(path)
                after = time.monotonic()
                if checkpoint_seconds:
                    due = after + max(checkpoint_seconds, LEISURE * (after - now))
            yield record
            if stop:
                return

    def save(self, path: str | os.PathLike[str]) -> None:
        """Model, server memory, sampler and records to one file, atomically; timings beside it."""
        to_numpy = self.engine.to_numpy
        arrays: Arrays = {
            "model": to_numpy(self.model),
            **{f"memory.{k}": to_numpy(v) for k, v in enumerate(self.memory)},
            **{f"sampler.{name}": a for name, a in self.sampler.packed().items()},
            **{f"records.{name}": a for name, a in records.packed(self.records).items()},
        }
        storage.write(path, storage.headed("simulation", self._about(), arrays))
        phases = list(self.seconds[0]) if self.seconds else []
        timings = {name: np.array([lap[name] for lap in self.seconds]) for name in phases}
        with storage.replacing(Path(path).with_name("timings.npz")) as file:
            np.savez(file, allow_pickle=False, **timings)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue the run that was saved: it ends as if it had never stopped."""
        about, arrays = storage.read(path, "simulation", records.CHECKPOINT)
        told = {k: v for k, v in about.items() if k not in ("format", "version")}
        mine = self._about()
        if told != mine:
            differs = [k for k in {**mine, **told} if told.get(k) != mine.get(k)]
            raise ValueError(
                f"{path} is of another run: {', '.join(differs)} differ; use another folder"
            )
        policy, procedure = self.sampler.policy, self.sampler.procedure
        with storage.whole("simulation", path):
            memory = storage.part(arrays, "memory")
            held = tuple(self.engine.from_numpy(memory[str(k)]) for k in range(len(memory)))
            model = self.engine.from_numpy(arrays["model"])
            sampler = Sampler.unpacked(storage.part(arrays, "sampler"), policy, procedure)
            past = records.unpacked(storage.part(arrays, "records"))
        self.model, self.memory, self.sampler, self.records = model, held, sampler, past
        self.seconds = _timings(Path(path).with_name("timings.npz"), len(self.records))

    def _about(self) -> dict[str, Any]:
        """What makes a run the same run."""
        return {
            "task": self.task.name,
            "data": self.task.fingerprint,
            "weights": crc32(self.sampler.weights.tobytes()),
            "clients": len(self.task),
            "local": repr(self.local),
            "server": repr(self.server),
            "coefficients": getattr(self.coefficients, "__name__", repr(self.coefficients)),
            "policy": repr(self.sampler.policy),
            "estimator": repr(self.sampler.estimator),
            "guard": repr(self.sampler.guard),
            "sketch": self.sampler.sketches.size,
            "procedure": repr(self.sampler.procedure),
            "budget": self.sampler.budget,
            "seeds": [self.seed, self.sampler.seed],
            "every": [self.evaluate_every, self.train_loss_every, self.exact_every],
            **self._options,
            **self._stragglers.about(),
        }


def _options(sampler: Sampler) -> dict[str, Any]:
    """What else a sampler was given; before the first round, since rates are learned."""
    arrays = sampler.packed()
    said = storage.about(arrays["header"], "sampler")
    parts = ("variables", "cost", "response", "availability")
    names = [n for n in sorted(arrays) if n.rpartition(".")[2] not in YOUNGER]
    checks = {part: [n for n in names if n.partition(".")[0] == part] for part in parts}
    bounds = {f"lowest {part}": float(arrays[f"{part}.lowest"]) for part in parts[2:]}
    usual = (0.0, EstimatedRate.lowest)
    return {
        "cool_down": said["cool down"],
        "over_select": said["over-select"],
        **{part: [crc32(arrays[n].tobytes()) for n in names] for part, names in checks.items()},
        **{name: bound for name, bound in bounds.items() if bound not in usual},
    }


class _Trained(NamedTuple):
    """What a round brought."""

    d: Vector
    norms: FloatArray
    variance: float
    """The cohort's own estimate."""
    cut: float
    """What the guard cut off."""


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def _timings(path: Path, rounds: int) -> list[dict[str, float]]:
    """Timings that were kept; a run whose timings are lost goes on without them."""
    try:
        with storage.whole("timings", path), open(path, "rb") as file, np.load(file) as archive:
            columns = {name: archive[name][:rounds] for name in archive.files}
    except ValueError:
        columns = {}
    phases = ["evaluate", "exact", "draw", "train", "update"]
    whole = np.full((len(phases), rounds), math.nan)
    for row, name in zip(whole, phases, strict=True):
        kept = columns.get(name, row[:0])
        row[: len(kept)] = kept
    return [dict(zip(phases, laps, strict=True)) for laps in whole.T.tolist()]
