"""Local training of the clients that were drawn, and the step that follows from it."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from kvib.cohort import Cohort
from kvib.estimators import tensors
from kvib.estimators.streaming import Coefficients, Estimation, NotFiniteError, answer_correction
from kvib.estimators.variance import deviation
from kvib.sim.engines.engine import Engine, Vector
from kvib.sim.local import Batches, LocalSGD, local_batches
from kvib.sim.task import Task
from kvib.types import BoolArray, FloatArray, IntArray

LARGEST_NORM = float(np.finfo(np.float32).max) ** 0.5
"""Beyond it squares are no numbers for engines in single precision."""


class DivergedError(ValueError):
    """Training has left the numbers; the last checkpoint is from before."""


def diverged(client: int, t: int) -> DivergedError:
    """What to say of a client whose update is no number."""
    return DivergedError(
        f"client {client} diverged in round {t}: lower the learning rate, or clip; the last "
        "checkpoint is from before"
    )


class RoundLearner(Protocol):
    """What learns from a cohort: see `kvib.sim.chooser.Chooser`."""

    @property
    def wants_updates(self) -> bool:
        """Whether it looks at single updates."""

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """An estimate to which updates are added."""

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """Learn from norms alone."""


class RoundWork(NamedTuple):
    """A round whose clients are about to train."""

    round: int
    model: Vector
    """Where they begin."""
    cohort: Cohort
    answered: BoolArray
    """Which of them answer, [m]."""
    coefficients: Coefficients
    """How their updates are weighted."""


class Trained(NamedTuple):
    """What the clients of a round brought."""

    d: Vector
    """The estimated step."""
    norms: FloatArray
    """‖g‖ of the drawn, NaN of those who did not answer."""
    variance: float
    """The cohort's own estimate of it; NaN where there is none."""
    cut: float
    """What the guard cut off."""


@dataclass(frozen=True, eq=False)
class Training:
    """A task in training: the clients, how they train, and the engine that does it.

    Args:
        task: the clients, their data, the model.
        engine: what trains.
        local: how clients train; the same as the engine's.
        seed: of all batches.
    """

    task: Task
    engine: Engine
    local: LocalSGD
    seed: int

    def __post_init__(self) -> None:
        task, local, engine = self.task, self.local, self.engine
        if getattr(engine, "task", task) is not task or getattr(engine, "local", local) != local:
            raise ValueError("the engine was made for another task or other local training")

    def work(self, ids: IntArray, t: int) -> Batches:
        """The batches of these clients in round t."""
        return local_batches(self.task.train, ids, self.local, self.seed, t)

    def length(self, vector: Vector) -> float:
        """‖vector‖."""
        return float(self.engine.norms(vector[None])[0])

    def train(self, learner: RoundLearner, drawn: RoundWork) -> Trained:
        """The step of a round, of which its learner has learned then."""
        answers = int(np.count_nonzero(drawn.answered))
        summed = not learner.wants_updates and self.engine.adds_up(answers)
        try:
            return self._summed(learner, drawn) if summed else self._each(learner, drawn)
        except NotFiniteError as error:
            raise diverged(error.client, drawn.round) from error

    def _each(self, learner: RoundLearner, drawn: RoundWork) -> Trained:
        """Chunk by chunk into the estimate."""
        t, model, cohort, answered, coefficients = drawn
        estimation, answering = learner.begin(cohort, coefficients), np.flatnonzero(answered)
        together = len(answering) <= self.engine.chunk
        gram = None if len(answering) else np.empty((0, 0))
        for part, batches in self.engine.chunks(self.work(cohort.ids[answered], t)):
            at = np.zeros(len(cohort), dtype=np.bool_)
            came, updates = self.engine.answers(model, batches)
            at[answering[part[came]]] = True
            residuals = estimation.add(at, updates)
            bad = np.flatnonzero(estimation.norms > LARGEST_NORM)
            if len(bad):
                raise diverged(int(cohort.ids[bad[0]]), t)
            if together and cohort.by_chance:
                gram = self.engine.gram(residuals)
        variance = _variance(cohort, estimation.norms, gram)
        d = tensors.formed(model, estimation.finish())  # a vector also where no client was heard
        return Trained(d, estimation.norms, variance, estimation.cut)

    def _summed(self, learner: RoundLearner, drawn: RoundWork) -> Trained:
        """Each update is added up and forgotten."""
        t, model, cohort, answered, coefficients = drawn
        engine, norms = self.engine, np.full(len(cohort), math.nan)
        factors = coefficients(cohort)[answered]
        norms[answered], d = engine.summed(model, self.work(cohort.ids[answered], t), factors)
        lost = np.isnan(norms) & engine.remote  # no other engine loses clients
        bad = np.flatnonzero(~(norms <= LARGEST_NORM) & answered & ~lost)
        if len(bad):
            raise diverged(int(cohort.ids[bad[0]]), t)
        learner.update(cohort, norms)
        d = d * answer_correction(coefficients, cohort, answered & ~lost)
        return Trained(d, norms, _variance(cohort, norms, None), 0.0)


def _variance(cohort: Cohort, norms: FloatArray, gram: FloatArray | None) -> float:
    """The cohort's own estimate; a selector's choice has none, since it has no probabilities."""
    return deviation(cohort, norms, gram).value if cohort.by_chance else math.nan
