"""From the replies of a round to its step: seen one by one, or only as a sum."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib.estimators.variance import Spread
from kvib.integrations.kit.arrays import LARGEST, BadReplyError, Model, ModelArrays
from kvib.integrations.kit.round import Round
from kvib.types import FloatArray

BLOCK = 100_000
"""Numbers of answers that are kept until they are added together, where others would let go of
them; at least one answer."""


class Answer(NamedTuple):
    """What a client of the cohort sent."""

    position: int
    """Place of the client in the cohort."""
    arrays: ModelArrays
    norm: Any = None
    """What it says the norm of its update is, where that is asked."""


class Outcome(NamedTuple):
    """What a round came to."""

    d: Any
    """The step, [d], or 0."""
    buffers: dict[str, FloatArray]
    """Averages; empty where no client was heard."""
    norms: FloatArray
    """Norms of updates as the sampler has learned them; NaN: no answer."""
    variance: float
    cut: float
    """What the guard took off the step."""


class Combination(ABC):
    """Takes in answers in any order; `finish` once."""

    def __init__(self, round: Round, model: Model) -> None:
        self._round, self._cohort, self._model = round, round.cohort, model
        self._factors = self._cohort.coefficients
        self._estimation = round.sampler.begin(self._cohort)
        self._spread = Spread(self._cohort)
        self._averages = Averages()

    @abstractmethod
    def add(self, answer: Answer) -> None:
        """One client's answer; a `BadReplyError` leaves everything as it was."""

    def take(self, answer: Answer) -> bool:
        """Whether an answer is an update and was added; if not, its client is refused."""
        try:
            self.add(answer)
        except BadReplyError as error:
            self._round.refuse(answer.position, str(error))
            return False
        return True

    @abstractmethod
    def finish(self) -> Outcome:
        """The step; the sampler has learned then."""


class Averages:
    """Weighted means of buffers."""

    def __init__(self) -> None:
        self._total: dict[str, FloatArray] = {}
        self._weight = 0.0

    def add(self, own: Mapping[str, FloatArray], factor: float, weight: float) -> None:
        """Buffers of a client, to be multiplied by a factor, and what that adds to the weight."""
        self._weight += weight
        for name, array in own.items():
            self._total[name] = self._total.get(name, np.zeros(())) + factor * array

    def means(self) -> dict[str, FloatArray]:
        """The means; empty where no client was heard."""
        return {name: total / self._weight for name, total in self._total.items()}


@dataclass(frozen=True)
class Visible:
    """The server sees the updates, computes their norms itself, and trusts no client with them."""

    tells: ClassVar[bool] = False
    """Whether clients must know their coefficients."""

    def begin(self, round: Round, model: Model, held: bool = True) -> Combination:
        """A round of this model; `held`: answers stay in memory anyway, so add all at once."""
        return _Seen(round, model, held)


class _Waiting(NamedTuple):
    """An answer that is to be added."""

    position: int
    arrays: Mapping[str, NDArray[Any]]
    norm: float


class _Seen(Combination):
    """Σ coefficient·(x − x_i), of all answers at once, or a few at a time."""

    def __init__(self, round: Round, model: Model, held: bool) -> None:
        super().__init__(round, model)
        self._held = held
        self._waiting: list[_Waiting] = []
        self._d = np.zeros(model.size)
        self._squared_sum = math.nan
        """What the variance wants to know; only who adds all answers at once knows it."""

    def add(self, answer: Answer) -> None:
        arrays = self._model.read(answer.arrays)
        norm = self._model.distance(arrays)
        own, factor = self._model.averaged(arrays), float(self._factors[answer.position])
        self._averages.add(own, factor, factor)
        self._waiting.append(_Waiting(answer.position, arrays, norm))
        if not self._held and len(self._waiting) * self._model.size >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        """Add who waits, in the order of the cohort."""
        if not self._waiting:
            return
        waiting, self._waiting = sorted(self._waiting, key=lambda one: one.position), []
        lengths = np.array([one.norm for one in waiting])
        at = np.zeros(len(self._cohort), np.bool_)
        at[[one.position for one in waiting]] = True
        factors = self._estimation.weigh(at, lengths)
        left = self._estimation.norms[at]
        shorter = np.divide(left, lengths, out=np.ones(len(left)), where=lengths > 0)
        weights = np.stack([factors, self._spread.weights[at] * shorter])
        arrays = [one.arrays for one in waiting]
        both = self._held and not self._spread.norms_suffice
        squared = self._model.add(arrays, weights[: 2 if both else 1], self._d)
        self._squared_sum = squared if both else math.nan

    def finish(self) -> Outcome:
        self._flush()
        estimation = self._estimation
        variance = self._spread.value(estimation.norms, self._squared_sum)
        d = estimation.finish(self._d, variance)
        return Outcome(d, self._averages.means(), estimation.norms, variance, estimation.cut)


@dataclass(frozen=True)
class Hidden:
    """Clients scale their updates themselves (`scaled_update`); only the sum has a meaning.

    The norms are what clients say. The guard bounds what a lie teaches the sampler, and nothing
    bounds what a hidden update does to the model.

    Args:
        complete: masks cancel only in the sum of all, so a round in which a client is missing
            leaves the model as it is. False: without masks, or with masks that survive losses.
    """

    complete: bool = True
    tells: ClassVar[bool] = True

    def begin(self, round: Round, model: Model) -> Combination:
        """A round of this model."""
        return _Unseen(round, model, self.complete)


class _Unseen(Combination):
    """The sum of what comes scaled."""

    def __init__(self, round: Round, model: Model, complete: bool) -> None:
        super().__init__(round, model)
        self._complete = complete
        self._d = np.zeros(model.size)
        self._norms = np.full(len(round), np.nan)

    def add(self, answer: Answer) -> None:
        said = answer.norm
        if not isinstance(said, float) or not 0 <= said <= LARGEST:
            raise BadReplyError(
                f"it reports the norm {said!r}; clients must scale their updates themselves, in "
                "Flower with ClientApp(mods=[…, scaled_update])"
            )
        arrays, row = self._model.read(answer.arrays), np.empty(len(self._d))
        self._model.joined(arrays, row)
        own = self._model.averaged(arrays)
        self._norms[answer.position] = said
        self._d += row
        self._averages.add(own, 1.0, float(self._factors[answer.position]))

    def finish(self) -> Outcome:
        came = ~np.isnan(self._norms)
        self._estimation.weigh(came, self._norms[came])
        self._estimation.finish()
        norms = self._estimation.norms
        if self._complete and not came.all():
            return Outcome(0.0, {}, norms, math.nan, 0.0)
        variance = self._spread.value(norms) if self._spread.norms_suffice else math.nan
        return Outcome(self._d, self._averages.means(), norms, variance, 0.0)
