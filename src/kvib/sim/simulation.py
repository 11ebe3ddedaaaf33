"""The round loop, the same for all samplers and selectors, all tasks and all engines."""

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import earlier_names
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.estimate import unbiased
from kvib.estimators.streaming import Coefficients
from kvib.sampler.sampler import Sampler
from kvib.selectors import Selector
from kvib.sim import checkpoint
from kvib.sim.checkpoint import Progress
from kvib.sim.chooser import Chooser, UpcomingRound
from kvib.sim.engines.engine import Engine, Vector
from kvib.sim.local import LocalSGD
from kvib.sim.records import Record
from kvib.sim.sampled import Sampled
from kvib.sim.selected import Selected
from kvib.sim.server import OptimiserState, ServerOptimiser, ServerSGD
from kvib.sim.stragglers import Stragglers
from kvib.sim.task import Task
from kvib.sim.timings import Clock, Laps
from kvib.sim.training import DivergedError, RoundWork, Trained, Training

LEISURE = 20
"""Between two checkpoints pass at least this many times the seconds that writing one takes, so
that checkpoints cost about a twentieth of the time at most."""
CHOOSERS: dict[type, Callable[[Any], Chooser]] = {Selector: Selected}
"""The chooser for each class that is not a sampler. All other classes get `Sampled`."""


@earlier_names({"gram_memory": "gram_bytes", "memory": "optimiser_state"})
class Simulation:
    """A federated run repeats rounds: draw, train, estimate, step, evaluate, record.

    In each round the drawn clients train, their updates g make an estimate d of the full step
    D = Σλg, and the server steps by d. The exact metrics, which a real federation cannot have, come
    from rounds in which all clients train.

    Examples:
        >>> import kvib
        >>> from kvib.sim import LinearEngine, LocalSGD, Simulation, synthetic
        >>> task, local = synthetic(), LocalSGD(learning_rate=0.02, batch_size=64)
        >>> sampler = kvib.Sampler(kvib.KVib(rounds=3), task.weights, budget=10)
        >>> simulation = Simulation(task, LinearEngine(task, local), sampler, local)
        >>> [record.round for record in simulation.run(rounds=3)]
        [0, 1, 2]

    Args:
        task: The clients, their data and the model.
        engine: The engine that trains clients.
        sampler: The sampler that draws clients, or a selector, whose choices are biased. The engine
            computes what a selector asks of clients before it chooses, and `Record.asked` counts
            these clients.
        local: How clients train. It must equal that of the engine.
        server: How the server moves the model by the estimated step. The default is `ServerSGD()`.
        coefficients: `kvib.unbiased` or `kvib.self_normalised`. The default is the first for
            samplers and the second for selectors, which have no other.
        evaluate_every: The number of rounds between evaluations on the test data. 0 means never.
        train_loss_every: The number of rounds between evaluations on all training data, which cost
            more. 0 means never.
        exact_every: The number of rounds between exact metrics, for which all clients train. 0
            means never. The metrics are NaN in rounds in which a client that was not drawn
            diverges, and for selectors, whose choices have no probabilities.
        seed: The seed of the initial model and of all batches.
        gram_bytes: The bytes that the updates of all clients may take, N·d·4, where an exact
            variance needs their inner products (fixed-size draws). Beyond it that variance is NaN.
        response: The true probability that a drawn client answers, a number or one per client. The
            default is the sampler's own where it knows one, else 1.
        availability: The true probability that a client is available when the round is drawn, a
            number or one per client. The default is the sampler's own where it knows one, else 1.
    """

    def __init__(
        self,
        task: Task,
        engine: Engine,
        sampler: Sampler | Selector,
        local: LocalSGD,
        server: ServerOptimiser | None = None,
        *,
        coefficients: Coefficients | None = None,
        evaluate_every: int = 1,
        train_loss_every: int = 0,
        exact_every: int = 0,
        seed: int = 0,
        gram_bytes: float = 16e9,
        response: ArrayLike | None = None,
        availability: ArrayLike | None = None,
    ) -> None:
        if len(sampler) != len(task):
            raise ValueError(f"the sampler has {len(sampler)} clients, the task {len(task)}")
        self._training = Training(task, engine, local, seed)
        self._chooser = CHOOSERS.get(type(sampler), Sampled)(sampler)
        self.task, self.engine, self.local, self.seed = task, engine, local, seed
        self.server = ServerSGD() if server is None else server
        self.coefficients = self._chooser.coefficients if coefficients is None else coefficients
        self.evaluate_every, self.train_loss_every = evaluate_every, train_loss_every
        self.exact_every, self.gram_bytes = exact_every, gram_bytes
        self.model: Vector = engine.initial(seed)
        self.optimiser_state: OptimiserState = self.server.start(self.model)
        self.records: list[Record] = []
        self.seconds: list[Laps] = []
        self._stragglers = Stragglers(len(task), self._chooser.rates, response, availability)

    @property
    def sampler(self) -> Any:
        """The sampler or selector of this run.

        A run that was continued has another object here than the one it was made with.
        """
        return self._chooser.sampler

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of this run's estimates, if all clients answer as they should.

        It is "biased" for selectors and for means.
        """
        return self._chooser.guarantee if self.coefficients is unbiased else "biased"

    def round(self) -> Record:
        """Run one round and return its record."""
        t, clock, chooser = len(self.records), Clock(), self._chooser
        measured = self._evaluate(t)
        clock.lap("evaluate")
        upcoming = self._upcoming(t)
        signals, seen = chooser.look(upcoming)
        clock.lap("exact")
        cohort = chooser.draw(upcoming, signals)
        clock.lap("draw")
        answered = self._stragglers.answering(cohort.ids, self.seed, t)
        drawn = RoundWork(t, self.model, cohort, answered, self.coefficients)
        trained = self._training.train(chooser, drawn)
        clock.lap("train")
        self._step(trained.d, t)
        clock.lap("update")
        available = int(np.count_nonzero(upcoming.stakes.drawable))
        record = self._record(t, cohort, trained, available=available, **measured, **seen)
        self.records.append(record)
        self.seconds.append(clock.laps)
        return record

    def _upcoming(self, t: int) -> UpcomingRound:
        """Round t before its draw, with the clients that are available."""
        rates = self._chooser.rates
        available = self._stragglers.available(rates, self.seed, t)
        return UpcomingRound(
            round=t,
            model=self.model,
            available=available,
            stakes=self._stragglers.stakes(rates, self._chooser.waiting, available),
            exact=_due(self.exact_every, t),
            gram_bytes=self.gram_bytes,
            coefficients=self.coefficients,
            training=self._training,
        )

    def _evaluate(self, t: int) -> dict[str, float]:
        """The losses and the accuracy that are due in round t, as fields of its record."""
        measured = {}
        if _due(self.evaluate_every, t):
            loss, accuracy = self.engine.evaluate(self.model, "test")
            measured = {"loss": loss, "accuracy": accuracy}
        if _due(self.train_loss_every, t):
            measured["train_loss"] = self.engine.evaluate(self.model, "train").loss
        losses = [value for name, value in measured.items() if name != "accuracy"]
        if not all(map(math.isfinite, losses)):
            raise DivergedError(
                f"the loss is not a number at round {t}: lower the learning rate, or raise the "
                "budget; the last checkpoint is from before"
            )
        return measured

    def _step(self, d: Vector, t: int) -> None:
        """Move the model by the estimated step d."""
        optimiser_state, model = self.server.step(self.optimiser_state, self.model, d)
        if not math.isfinite(self._training.length(model)):
            raise DivergedError(
                f"the model left the numbers in round {t}: lower the server's learning rate; the "
                "last checkpoint is from before"
            )
        self.optimiser_state, self.model = optimiser_state, model

    def _record(self, t: int, cohort: Cohort, trained: Trained, **measured: float) -> Record:
        """The record of round t."""
        return Record(
            round=t,
            clients=len(cohort),
            answered=int(np.count_nonzero(~np.isnan(trained.norms))),
            estimated_variance=trained.variance,
            step_norm=self._training.length(trained.d),
            cut=trained.cut,
            ids=cohort.ids,
            norms=trained.norms,
            **measured,
        )

    def run(
        self,
        rounds: int,
        folder: str | os.PathLike[str] | None = None,
        *,
        checkpoint_seconds: float = 10.0,
        stop_after: float = math.inf,
    ) -> Iterator[Record]:
        """Run until `rounds` rounds are done, and yield the record of each.

        Args:
            rounds: The number of rounds in all, those of an earlier start included.
            folder: The folder for checkpoints. A run found there is continued exactly. None means
                no checkpoints.
            checkpoint_seconds: The seconds between checkpoints, more where saving takes long. 0
                saves after every round.
            stop_after: The seconds after which the run saves and stops, to be continued later or
                on another machine.
        """
        path = None if folder is None else Path(folder) / "checkpoint.npz"
        if path is not None:
            self._chooser.check_checkpoint()
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
        """Save model, optimiser state, sampler and records to one file, atomically.

        Timings are written to a file beside it.

        Args:
            path: The file to write.
        """
        progress = Progress(
            self.model, self.optimiser_state, self._chooser, self.records, self.seconds
        )
        checkpoint.write(path, self._about(), self.engine, progress)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restore the run that was saved, which then ends as if it had never stopped.

        Args:
            path: The file that `save` wrote.
        """
        found = checkpoint.read(path, self._about(), self.engine, self._chooser)
        self.model, self.optimiser_state, self._chooser, self.records, self.seconds = found

    def _about(self) -> dict[str, Any]:
        """The settings that a checkpoint must share with this run."""
        sampler = self.sampler
        return {
            "task": self.task.name,
            "data": self.task.fingerprint,
            "weights": crc32(sampler.weights.tobytes()),
            "clients": len(self.task),
            "local": repr(self.local),
            "server": repr(self.server),
            "coefficients": getattr(self.coefficients, "__name__", repr(self.coefficients)),
            "budget": sampler.budget,
            "seeds": [self.seed, sampler.seed],
            "every": [self.evaluate_every, self.train_loss_every, self.exact_every],
            **self._chooser.about(),
            **self._stragglers.about(),
        }


def _due(every: int, t: int) -> bool:
    """Whether something that happens every so often happens in round t. 0 means never."""
    return every > 0 and t % every == 0
