"""Local training of the drawn clients, and the step that is estimated from it."""

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
"""The largest norm whose square is finite in single precision."""


class DivergedError(ValueError):
    """A loss, an update or the model is not finite any more: training has diverged.

    The last checkpoint is from before.
    """


def diverged(client: int, t: int) -> DivergedError:
    """The error for a client whose update is not finite."""
    return DivergedError(
        f"client {client} diverged in round {t}: lower the learning rate, or clip; the last "
        "checkpoint is from before"
    )


class RoundLearner(Protocol):
    """The part of a chooser that learns from a cohort: see `kvib.sim.chooser.Chooser`."""

    @property
    def wants_updates(self) -> bool:
        """Whether the chooser looks at single updates."""

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """An estimate to which updates are added."""

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """Learn from norms alone."""


class RoundWork(NamedTuple):
    """A round whose clients are about to train."""

    round: int
    """The number of the round."""
    model: Vector
    """The model that clients start from."""
    cohort: Cohort
    """The drawn clients."""
    answered: BoolArray
    """Which drawn clients answer, [m]."""
    coefficients: Coefficients
    """How updates are weighted."""


class Trained(NamedTuple):
    """The result of a round's local training."""

    d: Vector
    """The estimated step, [d]."""
    norms: FloatArray
    """‖g‖ of the drawn clients, [m], and NaN of those that did not answer."""
    variance: float
    """The variance as estimated from the cohort alone, NaN where it cannot be."""
    cut: float
    """What the guard cut off Σ coefficient·‖g‖."""


@dataclass(frozen=True, eq=False)
class Training:
    """A task, how its clients train, and the engine that trains them.

    Args:
        task: The clients, their data and the model.
        engine: The engine that trains clients.
        local: How clients train. It must equal that of the engine.
        seed: The seed of all batches.
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
        """The step of a round. The learner has learned from the round when this returns."""
        answers = int(np.count_nonzero(drawn.answered))
        summed = not learner.wants_updates and self.engine.adds_up(answers)
        try:
            return self._summed(learner, drawn) if summed else self._each(learner, drawn)
        except NotFiniteError as error:
            raise diverged(error.client, drawn.round) from error

    def _each(self, learner: RoundLearner, drawn: RoundWork) -> Trained:
        """The step from single updates, which go into the estimate chunk by chunk."""
        t, model, cohort, answered, coefficients = drawn
        estimation, answering = learner.begin(cohort, coefficients), np.flatnonzero(answered)
        together = len(answering) <= self.engine.chunk
        gram = None if len(answering) else np.empty((0, 0))
        for part, batches in self.engine.chunks(self.work(cohort.ids[answered], t)):
            # The updates of this chunk, added at the positions of the clients that answered.
            at = np.zeros(len(cohort), dtype=np.bool_)
            arrived, updates = self.engine.answers(model, batches)
            at[answering[part[arrived]]] = True
            residuals = estimation.add(at, updates)
            bad = np.flatnonzero(estimation.norms > LARGEST_NORM)
            if len(bad):
                raise diverged(int(cohort.ids[bad[0]]), t)
            if together and cohort.by_chance:
                gram = self.engine.gram(residuals)
        variance = _variance(cohort, estimation.norms, gram)
        d = tensors.formed(model, estimation.finish())  # a vector also where no client answered
        return Trained(d, estimation.norms, variance, estimation.cut)

    def _summed(self, learner: RoundLearner, drawn: RoundWork) -> Trained:
        """The step from a sum: each update is added up and forgotten."""
        t, model, cohort, answered, coefficients = drawn
        engine, norms = self.engine, np.full(len(cohort), math.nan)
        factors = coefficients(cohort)[answered]
        norms[answered], d = engine.summed(model, self.work(cohort.ids[answered], t), factors)
        lost = np.isnan(norms) & engine.remote  # only remote engines lose clients
        bad = np.flatnonzero(~(norms <= LARGEST_NORM) & answered & ~lost)
        if len(bad):
            raise diverged(int(cohort.ids[bad[0]]), t)
        learner.update(cohort, norms)
        d = d * answer_correction(coefficients, cohort, answered & ~lost)
        return Trained(d, norms, _variance(cohort, norms, None), 0.0)


def _variance(cohort: Cohort, norms: FloatArray, gram: FloatArray | None) -> float:
    """The variance as estimated from the cohort. A selector has none, for want of probabilities."""
    return deviation(cohort, norms, gram).value if cohort.by_chance else math.nan
