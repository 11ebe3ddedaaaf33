"""From the replies of a round to its step: seen one by one, or only as a sum."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvib.cohort import Cohort, FloatArray
from kvib.integrations.arrays import LARGEST, Arrays, BadReplyError, Model
from kvib.sampler import Sampler
from kvib.variance import Spread

BLOCK = 100_000
"""Numbers of answers that are kept until they are added together, where others would let go of
them; at least one answer."""


class Answer(NamedTuple):
    """What a client of the cohort sent."""

    position: int
    """In the cohort."""
    arrays: Arrays
    norm: Any = None
    """What it says the norm of its update is, where that is asked."""


class Outcome(NamedTuple):
    """What a round came to."""

    d: Any
    """The step, [d], or 0."""
    buffers: dict[str, FloatArray]
    """Averages; none where nobody came."""
    norms: FloatArray
    """As the sampler has learned them; NaN: no answer."""
    variance: float
    cut: float
    """What the guard took off the step."""


class Combination(ABC):
    """Takes in answers in any order; `finish` once."""

    def __init__(self, sampler: Sampler, cohort: Cohort, model: Model) -> None:
        self._cohort, self._model, self._factors = cohort, model, cohort.coefficients
        self._estimation = sampler.begin(cohort)
        self._spread = Spread(cohort)
        self._averages = Averages()

    @abstractmethod
    def add(self, answer: Answer) -> None:
        """One client's answer; a `BadReplyError` leaves everything as it was."""

    @abstractmethod
    def finish(self) -> Outcome:
        """The step; the sampler has learned then."""


class Averages:
    """Of the buffers of those who came."""

    def __init__(self) -> None:
        self._total: dict[str, FloatArray] = {}
        self._weight = 0.0

    def add(self, own: Mapping[str, FloatArray], factor: float, weight: float) -> None:
        """Buffers, to be multiplied by a factor, that stand for so much weight."""
        self._weight += weight
        for name, array in own.items():
            self._total[name] = self._total.get(name, np.zeros(())) + factor * array

    def means(self) -> dict[str, FloatArray]:
        """Empty if nobody came."""
        return {name: total / self._weight for name, total in self._total.items()}


@dataclass(frozen=True)
class Visible:
    """The server sees the updates: it computes their norms itself, and trusts nobody with them."""

    tells: ClassVar[bool] = False
    """Whether clients must know their coefficients."""

    def begin(
        self, sampler: Sampler, cohort: Cohort, model: Model, held: bool = True
    ) -> Combination:
        """A round of this model; `held`: answers stay in memory anyway, so add all at once."""
        return _Seen(sampler, cohort, model, held)


class _Waiting(NamedTuple):
    """An answer that is to be added."""

    position: int
    arrays: Mapping[str, NDArray[Any]]
    norm: float


class _Seen(Combination):
    """Σ coefficient·(x − x_i), of all answers at once, or a few at a time."""

    def __init__(self, sampler: Sampler, cohort: Cohort, model: Model, held: bool) -> None:
        super().__init__(sampler, cohort, model)
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
        complete: masks cancel only in the sum of all, so a round in which somebody is missing
            leaves the model as it is. False: without masks, or with masks that survive losses.
    """

    complete: bool = True
    tells: ClassVar[bool] = True

    def begin(self, sampler: Sampler, cohort: Cohort, model: Model) -> Combination:
        """A round of this model."""
        return _Unseen(sampler, cohort, model, self.complete)


class _Unseen(Combination):
    """The sum of what comes scaled."""

    def __init__(self, sampler: Sampler, cohort: Cohort, model: Model, complete: bool) -> None:
        super().__init__(sampler, cohort, model)
        self._complete = complete
        self._d = np.zeros(model.size)
        self._norms = np.full(len(cohort), np.nan)

    def add(self, answer: Answer) -> None:
        said = answer.norm
        if not isinstance(said, float) or not 0 <= said <= LARGEST:
            told = f"it reports the norm {said!r}; ClientApp(mods=[…, scaled_update])?"
            raise BadReplyError(told)
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


def averaged(told: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, Any]:
    """Weighted means of what clients measured: of the numbers, or lists of one length, that all
    of them tell.
    """
    records = list(told)
    if not records:
        return {}
    weights = np.array([weight for _, weight in records])
    weights = weights / weights.sum()
    means = {}
    for name in alike([record for record, _ in records]):
        means[name] = (weights @ np.array([record[name] for record, _ in records])).tolist()
    return means


def alike(records: list[Mapping[str, Any]]) -> list[str]:
    """Names of numbers, or lists of one length, that are in all records."""
    return [name for name in records[0] if _of_one_shape([r.get(name) for r in records])]


def _of_one_shape(values: list[Any]) -> bool:
    try:
        return np.array(values).dtype.kind in "fiub"
    except (ValueError, OverflowError):  # a list where others have a number
        return False
