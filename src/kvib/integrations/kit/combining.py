"""From the replies of a round to its step. The server sees each reply, or only their sum."""

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
"""Numbers that are collected before they are added, where answers are not held in memory anyway. At
least one answer is collected."""


class Answer(NamedTuple):
    """Holds what a client of the cohort sent.

    Examples:
        >>> import numpy as np
        >>> from kvib.integrations.kit import Answer
        >>> answer = Answer(position=0, arrays={"w": np.zeros(3)})
        >>> answer.norm is None
        True
    """

    position: int
    """The position of the client in the cohort."""
    arrays: ModelArrays
    """The arrays x_i by name, as NumPy arrays or the bytes of `.npy` files. With `Hidden` they hold
    the scaled update."""
    norm: Any = None
    """The norm of the update that the client reports, with `Hidden`."""


class Outcome(NamedTuple):
    """Holds the step of a round and what is known about it.

    Examples:
        >>> import numpy as np
        >>> from kvib.integrations.kit import Outcome
        >>> outcome = Outcome(np.ones(2), {}, np.array([0.5, np.nan]), variance=0.1, cut=0.0)
        >>> outcome.d
        array([1., 1.])
    """

    d: Any
    """The step, [d], or 0."""
    buffers: dict[str, FloatArray]
    """The averaged buffers by name. Empty where no client answered."""
    norms: FloatArray
    """The norms of the updates that the sampler has learned. NaN marks a silent client."""
    variance: float
    """The estimated variance of the step. NaN where it is not known."""
    cut: float
    """What the guard cut off Σ coefficient·‖g‖: a bound on the bias of this round."""


class Combination(ABC):
    """Adds up the answers to a round, in any order. `finish` is called once.

    `Visible().begin(round, model)` and `Hidden().begin(round, model)` make one.

    Args:
        round: The round whose answers are added.
        model: The model that was sent to the clients.

    Examples:
        >>> import kvib
        >>> import numpy as np
        >>> from kvib.integrations.kit import Answer, KnownClients, Model, Visible
        >>> clients = KnownClients(kvib.Sampler(kvib.Uniform(), [1, 3], budget=2))
        >>> combination = Visible().begin(clients.draw(), Model({"w": np.zeros(2)}, set()))
        >>> combination.take(Answer(0, {"w": np.array([4.0, 0.0])}))
        True
        >>> combination.take(Answer(1, {"w": np.array([0.0, 4.0])}))
        True
        >>> combination.finish().d  # −1/4·[4, 0] − 3/4·[0, 4]
        array([-1., -3.])
    """

    def __init__(self, round: Round, model: Model) -> None:
        self._round, self._cohort, self._model = round, round.cohort, model
        self._factors = self._cohort.coefficients
        self._estimation = round.sampler.begin(self._cohort)
        self._spread = Spread(self._cohort)
        self._averages = Averages()

    @abstractmethod
    def add(self, answer: Answer) -> None:
        """Add the answer of one client. A `BadReplyError` leaves everything as it was.

        Args:
            answer: The answer.
        """

    def take(self, answer: Answer) -> bool:
        """Add an answer if it is an update, and refuse its client in the round if not.

        Args:
            answer: The answer. The result says whether it was added.
        """
        try:
            self.add(answer)
        except BadReplyError as error:
            self._round.refuse(answer.position, str(error))
            return False
        return True

    @abstractmethod
    def finish(self) -> Outcome:
        """Return the step of the round, after the sampler has learned from it."""


class Averages:
    """The weighted means of buffers."""

    def __init__(self) -> None:
        self._total: dict[str, FloatArray] = {}
        self._weight = 0.0

    def add(self, own: Mapping[str, FloatArray], factor: float, weight: float) -> None:
        """Add factor times the buffers of a client, which count with this weight."""
        self._weight += weight
        for name, array in own.items():
            self._total[name] = self._total.get(name, np.zeros(())) + factor * array

    def means(self) -> dict[str, FloatArray]:
        """The means by name. Empty where no client answered."""
        return {name: total / self._weight for name, total in self._total.items()}


@dataclass(frozen=True)
class Visible:
    """Sums updates that the server sees. It computes their norms itself and trusts no client.

    d = Σ coefficient·(x − x_i).

    Examples:
        >>> import kvib
        >>> import numpy as np
        >>> from kvib.integrations.kit import Answer, KnownClients, Model, Visible
        >>> round = KnownClients(kvib.Sampler(kvib.Uniform(), [1.0], budget=1)).draw()
        >>> combination = Visible().begin(round, Model({"w": np.ones(2)}, set()))
        >>> combination.add(Answer(0, {"w": np.array([0.5, 1.0])}))
        >>> combination.finish().d
        array([0.5, 0. ])
    """

    tells: ClassVar[bool] = False
    """Whether the server must send clients their coefficients."""

    def begin(self, round: Round, model: Model, held: bool = True) -> Combination:
        """Begin the sum of a round.

        Args:
            round: The round whose answers are added.
            model: The model that was sent to the clients.
            held: Whether the framework holds all answers in memory anyway. They are added all at
                once then, which also gives the variance of draws for which norms do not suffice. If
                not, they are added a few at a time.
        """
        return _Seen(round, model, held)


class _Waiting(NamedTuple):
    """An answer that is to be added, with the norm of its update."""

    position: int
    arrays: Mapping[str, NDArray[Any]]
    norm: float


class _Seen(Combination):
    """The sum Σ coefficient·(x − x_i) over all answers at once, or a few at a time."""

    def __init__(self, round: Round, model: Model, held: bool) -> None:
        super().__init__(round, model)
        self._held = held
        self._waiting: list[_Waiting] = []
        self._d = np.zeros(model.size)
        self._squared_sum = math.nan
        """The squared norm that the variance needs. It is known where answers are added at once."""

    def add(self, answer: Answer) -> None:
        arrays = self._model.read(answer.arrays)
        norm = self._model.distance(arrays)
        own, factor = self._model.averaged(arrays), float(self._factors[answer.position])
        self._averages.add(own, factor, factor)
        self._waiting.append(_Waiting(answer.position, arrays, norm))
        if not self._held and len(self._waiting) * self._model.size >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        """Add the waiting answers, in the order of the cohort."""
        if not self._waiting:
            return
        waiting, self._waiting = sorted(self._waiting, key=lambda answer: answer.position), []
        lengths = np.array([answer.norm for answer in waiting])
        at = np.zeros(len(self._cohort), np.bool_)
        at[[answer.position for answer in waiting]] = True
        factors = self._estimation.weigh(at, lengths)
        # The guard may have shortened updates, and the variance is that of the shortened ones.
        left = self._estimation.norms[at]
        shorter = np.divide(left, lengths, out=np.ones(len(left)), where=lengths > 0)
        weights = np.stack([factors, self._spread.weights[at] * shorter])
        arrays = [answer.arrays for answer in waiting]
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
    """Sums updates that clients scale and may mask themselves, so that only their sum is used.

    Each client sends coefficient·(x − x_i) and reports its norm (in Flower by `scaled_update`). The
    guard bounds what a false norm teaches the sampler. Nothing bounds what a hidden update does to
    the model.

    Args:
        complete: Whether the sum has a meaning only if all drawn clients answered, as with masks
            that cancel in the sum of all. A round in which a client is missing leaves the model as
            it is then. False is for updates without masks, or with masks that survive losses.

    Examples:
        >>> import kvib
        >>> import numpy as np
        >>> from kvib.integrations.kit import Answer, Hidden, KnownClients, Model
        >>> round = KnownClients(kvib.Sampler(kvib.Uniform(), [1, 1], budget=2)).draw()
        >>> combination = Hidden().begin(round, Model({"w": np.zeros(2)}, set()))
        >>> combination.add(Answer(0, {"w": np.array([0.5, 0.0])}, norm=1.0))
        >>> combination.add(Answer(1, {"w": np.array([0.5, 0.5])}, norm=1.4))
        >>> combination.finish().d
        array([1. , 0.5])
    """

    complete: bool = True
    tells: ClassVar[bool] = True
    """Whether the server must send clients their coefficients."""

    def begin(self, round: Round, model: Model) -> Combination:
        """Begin the sum of a round.

        Args:
            round: The round whose answers are added.
            model: The model that was sent to the clients.
        """
        return _Unseen(round, model, self.complete)


class _Unseen(Combination):
    """The sum of updates that clients have scaled by their coefficients."""

    def __init__(self, round: Round, model: Model, complete: bool) -> None:
        super().__init__(round, model)
        self._complete = complete
        self._d = np.zeros(model.size)
        self._norms = np.full(len(round), np.nan)

    def add(self, answer: Answer) -> None:
        norm = answer.norm
        if not isinstance(norm, float) or not 0 <= norm <= LARGEST:
            raise BadReplyError(
                f"it reports the norm {norm!r}; clients must scale their updates themselves, in "
                "Flower with ClientApp(mods=[…, scaled_update])"
            )
        arrays, row = self._model.read(answer.arrays), np.empty(len(self._d))
        self._model.joined(arrays, row)
        own = self._model.averaged(arrays)
        self._norms[answer.position] = norm
        self._d += row
        self._averages.add(own, 1.0, float(self._factors[answer.position]))

    def finish(self) -> Outcome:
        answered = ~np.isnan(self._norms)
        self._estimation.weigh(answered, self._norms[answered])
        self._estimation.finish()
        norms = self._estimation.norms
        if self._complete and not answered.all():
            return Outcome(0.0, {}, norms, math.nan, 0.0)
        variance = self._spread.value(norms) if self._spread.norms_suffice else math.nan
        return Outcome(self._d, self._averages.means(), norms, variance, 0.0)
