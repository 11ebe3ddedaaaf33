"""The estimate of one round, fed with updates as they come."""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from kvib.checks import LARGEST_NORM, warn
from kvib.cohort import Cohort, Guarantee, by_id
from kvib.estimators import tensors
from kvib.estimators.difference import Remembered
from kvib.estimators.guard import Guard
from kvib.estimators.tensors import Rows
from kvib.estimators.variance import Spread
from kvib.types import BoolArray, FloatArray, IntArray, Key, Tensor

Coefficients = Callable[[Cohort], FloatArray]
Update = Any
"""One client's update: a `Tensor`, a number, or dicts and lists of them. An estimate has the same
form, which only the caller knows."""


class NotFiniteError(ValueError):
    """A client's update has left the numbers."""

    def __init__(
        self,
        client: int,
        norm: float,
        way_out: str = "leave out the update of a client that failed or diverged (None)",
    ) -> None:
        self.client = client
        super().__init__(
            f"norm {norm} of client {client}: a norm is between 0 and {LARGEST_NORM:g}; {way_out}"
        )


def overflown(ids: IntArray, shares: FloatArray, total: Tensor) -> ValueError:
    """An estimate beyond what its precision can say, of clients with these shares in it."""
    kind, worst = str(total.dtype).removeprefix("torch."), int(np.nanargmax(shares))
    return ValueError(
        f"the estimate overflows {kind}: client {ids[worst]} adds most to it, a share of norm "
        f"{shares[worst]:g}; give the updates in {'float32' if '16' in kind else 'float64'}"
    )


def answer_correction(coefficients: Coefficients, cohort: Cohort, answered: BoolArray) -> float:
    """What a sum with the coefficients of all who were drawn is multiplied by, once it is known who
    was heard: 1 for the unbiased ones, more for a mean, which is one of those who answered."""
    drawn = float(coefficients(cohort)[answered].sum())
    return float(coefficients(cohort.take(answered)).sum()) / drawn if drawn > 0 else 1.0


def answers(cohort: Cohort, updates: Any) -> tuple[BoolArray, Sequence[Update]]:
    """Which clients of a cohort answered, and their updates in the same order."""
    given = by_id(cohort, updates) if isinstance(updates, Mapping) else _listed(updates)
    if len(given) != len(cohort):
        raise ValueError(
            f"{len(given)} updates for a cohort of {len(cohort)}; give one per client in the order "
            "of cohort.ids, None where there was no answer, or a mapping from client id to update"
        )
    answered = np.array([update is not None for update in given], dtype=np.bool_)
    return answered, given if answered.all() else [u for u in given if u is not None]


def _listed(updates: Any) -> Any:
    """Updates in an order that can be gone through more than once: a list of what is generated."""
    if hasattr(updates, "shape") or isinstance(updates, list | tuple):
        return updates
    if not isinstance(updates, Iterable) or isinstance(updates, str | bytes | Set):
        raise ValueError(
            f"updates {reprlib.repr(updates)} are not in an order; give a list in the order of "
            "cohort.ids, or a mapping from client id to update"
        )
    return list(updates)


def as_rows(updates: Sequence[Update] | Tensor) -> tuple[Rows, tuple[int, ...]]:
    """Updates of one shape as rows, [m, d], and that shape; arrays and tensors alike."""
    if hasattr(updates, "shape"):
        stacked = tensors.real(updates)
    else:
        stacked = tensors.stacked(_of_one_shape(updates))
    return tensors.floating(stacked.reshape((len(stacked), -1))), tuple(stacked.shape[1:])


def _of_one_shape(updates: Sequence[Update]) -> list[Tensor]:
    first = updates[0]
    if isinstance(first, Mapping | list | tuple) and not is_numbers(first):
        raise ValueError(
            "sampler.step takes arrays or tensors; join the parts of a nested update first"
        )
    arrays = [tensors.real(update) for update in updates]
    shapes = [tuple(array.shape) for array in arrays]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"the updates have shapes {shapes[0]} and {shape} (number {k}); all must be of one "
                "model"
            )
    return arrays


def is_numbers(update: Any) -> bool:
    """Whether an update is a plain list of numbers."""
    return isinstance(update, list | tuple) and all(isinstance(x, int | float) for x in update)


class Ended(NamedTuple):
    """A round whose updates have all come."""

    cohort: Cohort
    norms: FloatArray
    """‖g − βh‖ of those who answered, NaN of others."""
    sketches: FloatArray
    step_length: float
    """Σ coefficient·‖g‖, from which the guard learns."""
    kept: list[tuple[Cohort, Rows]]
    """What an estimator that remembers shall keep."""
    variance: float = math.nan
    """What the updates show of it; NaN where it is not known."""
    cut: float = 0.0
    """What the guard cut off."""
    biased: bool = False
    """Whether that, or the coefficients, made the estimate biased."""


class Context(NamedTuple):
    """What an estimation takes from a sampler, as of its beginning."""

    guard: Guard | None
    typical_step: float
    memory: Remembered | None
    sketch: int
    """Numbers of each sketch."""
    names: Callable[[IntArray], list[Key]]
    """What clients are called, for messages."""
    silence: Callable[[Cohort, BoolArray], None]
    """Called with those who answered."""
    end: Callable[[Ended], Guarantee]
    """Learns from the round, and says what its estimate is."""


class Estimation:
    """Σ coefficient·(g − βh) + βΣλh, accumulated in double precision, part by part.

    Made by `Sampler.begin`. Parts may come in any order; who is never added did not answer. What
    was remembered is taken as of the beginning, whatever other rounds do to the memory meanwhile.
    `answered`, where it is known before: a guard bounds the shares of a mean of those then. With
    `spread` the variance of the estimate is estimated on the way, at the cost of one more sum.
    """

    def __init__(
        self,
        context: Context,
        cohort: Cohort,
        coefficients: Coefficients,
        answered: BoolArray | None = None,
        spread: Spread | None = None,
    ) -> None:
        self._context, self._cohort, self._coefficients = context, cohort, coefficients
        self._weigh(answered)
        memory = context.memory
        self._d: Tensor | float = 0.0 if memory is None else memory.known(cohort.excluded)
        self._recalled: Rows | None = None if memory is None else memory.recalled(cohort.ids)
        self._kept: list[tuple[BoolArray, Rows]] = []
        self.norms = np.full(len(cohort), np.nan)
        """‖g − βh‖ of those who were added, as the policy will learn them."""
        self.not_finite = np.zeros(len(cohort), dtype=np.bool_)
        """Whose updates are no numbers; with a guard they count as no answer."""
        self.guarantee: Guarantee = cohort.guarantee
        """Of the estimate, as of the draw; once it is finished, as of the answers too."""
        self.variance = math.nan
        """What the round says of the variance of its estimate, once it is finished; NaN where
        it was not asked for, or is not known."""
        self._spread = spread
        self._together: Tensor | float = 0.0
        """The sum that the variance depends on."""
        self._like: Tensor | None = None
        self._sketches = np.zeros((len(cohort), context.sketch))

    def _weigh(self, answered: BoolArray | None) -> None:
        """Coefficients, and what they let a client add."""
        self._answered, self._scale = answered, 1.0
        self._more = (
            1.0
            if answered is None
            else answer_correction(self._coefficients, self._cohort, answered)
        )
        self._factors = self._coefficients(self._cohort) * self._more
        guard, step_length = self._context.guard, self._context.typical_step
        self._guarded = None if guard is None else guard.over(self._factors, step_length)

    @property
    def cut(self) -> float:
        """What the guard has cut off so far: a bound on the bias of this round."""
        if self._guarded is None:
            return 0.0
        return self._scale * (self._guarded.cut + self._guarded.most(self.not_finite))

    def add(self, at: BoolArray, updates: Rows) -> Rows:
        """Take in the updates of the clients that `at` marks, [m, d], whose place may be used again
        afterwards; returns g − βh of those that are finite, as far as a guard left it. Without a
        guard all must be."""
        given = tensors.floating(tensors.real(updates))
        return self.borrow(at, given if self._context.memory is None else tensors.copied(given))

    def borrow(self, at: BoolArray, updates: Rows) -> Rows:
        """The same of updates that stay as they are until the end."""
        self._check(at, updates)
        recalled = None if self._recalled is None else tensors.like(updates, self._recalled[at])
        residuals = updates if recalled is None else updates - recalled
        lengths = tensors.norms(residuals)
        sound = lengths <= LARGEST_NORM
        if not sound.all():
            at = self._without(at, sound, lengths)
            updates, residuals = tensors.some(updates, sound), tensors.some(residuals, sound)
            recalled = None if recalled is None else tensors.some(recalled, sound)
            lengths = lengths[sound]
        if self._guarded is not None:
            shorter = self._guarded.shorten(at, lengths, tensors.norms(updates))
            if (shorter < 1).any():  # what was cut must not come back from memory
                residuals = residuals * tensors.like(residuals, shorter[:, None])
                updates = residuals if recalled is None else recalled + residuals
                lengths = lengths * shorter
        self.norms[at] = lengths
        if self._context.sketch:
            self._sketches[at] = tensors.sketch(updates, self._context.sketch)
        self._d = tensors.plus(self._d, tensors.doubled(self._factors[at], residuals))
        if self._spread is not None and not self._spread.norms_suffice:
            weighted = tensors.doubled(self._spread.weights[at], residuals)
            self._together = tensors.plus(self._together, weighted)
        self._like = residuals[:0]
        if self._context.memory is not None:
            self._kept.append((np.array(at), updates))
        return residuals

    def weigh(self, at: BoolArray, lengths: FloatArray) -> FloatArray:
        """Take in the clients that `at` marks by the norms of their updates, [m].

        Returns the factor of each in Σ factor·g, 0 where the norm is not finite. The caller adds
        that up, where the updates lie and without rows of their own, and gives it to `finish`.
        """
        if self._context.memory is not None or self._context.sketch:
            raise ValueError(
                "this sampler remembers updates or sketches of them, for which norms do not "
                "suffice; give the updates to add"
            )
        self._check(at, lengths[:, None])
        sound = lengths <= LARGEST_NORM
        marked = at if sound.all() else self._without(at, sound, lengths)
        left = lengths[sound]
        shorter = np.ones(len(left))
        if self._guarded is not None:
            shorter = self._guarded.shorten(marked, left, left)
        self.norms[marked] = left * shorter
        factors = np.zeros(len(lengths))
        factors[sound] = self._factors[marked] * shorter
        return factors

    def _check(self, at: BoolArray, updates: Rows) -> None:
        if np.asarray(at).dtype != np.bool_ or np.shape(at) != (len(self._cohort),):
            raise ValueError("mark the clients by a mask: one boolean per client of the cohort")
        if updates.ndim != 2:
            raise ValueError(f"updates have shape {tuple(updates.shape)}; give a row per client")
        if int(np.count_nonzero(at)) != len(updates):
            raise ValueError(f"{len(updates)} updates for {np.count_nonzero(at)} marked clients")
        if not np.isnan(self.norms[at]).all() or self.not_finite[at].any():
            raise ValueError("a client was added before; add each once")
        if self._context.memory is not None:
            self._context.memory.check(updates)

    def _without(self, at: BoolArray, sound: BoolArray, lengths: FloatArray) -> BoolArray:
        """`at` without those whose updates are no numbers: nothing can shorten them."""
        gone = np.array(at)
        gone[at] = ~sound
        if self._guarded is None:
            raise NotFiniteError(int(self._cohort.ids[gone][0]), float(lengths[~sound][0]))
        self.not_finite |= gone
        if self._answered is not None:  # then all come at once, and a mean is one of the others
            self._weigh(self._answered & ~gone)
        return at & ~gone

    def _tell(self, answered: BoolArray) -> None:
        """Who was left out; where it is the most, the model exploded, not a client."""
        gone = self._cohort.ids[self.not_finite]
        if len(gone) > np.count_nonzero(answered):
            raise NotFiniteError(
                int(gone[0]),
                math.nan,
                "most updates of the round are like that, so it is the model that exploded; go "
                "back to an earlier one, and lower the learning rate",
            )
        if len(gone):
            names = ", ".join(map(str, self._context.names(gone)))
            warn(
                f"updates of round {self._cohort.round} are not finite, and left out as if their "
                f"clients had not answered: {names}; lower the learning rate, or clip"
            )
        self._context.silence(self._cohort, answered | self.not_finite)

    def finish(self, added: Tensor | None = None, variance: float | None = None) -> Any:
        """The estimated step d, or 0 if no client answered. The sampler has learned then.

        Args:
            added: Σ factor·g of those given to `weigh`, in double precision.
            variance: of the estimate, where the caller has estimated it; a journal keeps it.
        """
        if added is not None:
            self._d = added if self._like is None else tensors.plus(self._d, added)
        kept = [(self._cohort.take(at), updates) for at, updates in self._kept]
        answered = ~np.isnan(self.norms)
        self._tell(answered)
        more = answer_correction(self._coefficients, self._cohort, answered) / self._more
        # with a memory there is more to d than the sum, but coefficients are unbiased then
        d = self._as_given(self._d if more == 1 else self._d * more)
        step_length = 0.0 if self._guarded is None else self._guarded.total() * more
        if variance is None:
            variance = self._seen_variance()
        self.variance, self._scale = variance, more
        ended = Ended(
            cohort=self._cohort,
            norms=self.norms,
            sketches=self._sketches,
            step_length=step_length,
            kept=kept,
            variance=variance,
            cut=self.cut,
            biased=self.cut > 0 or self.guarantee == "biased",
        )
        self.guarantee = self._context.end(ended)
        return d

    def _seen_variance(self) -> float:
        if self._spread is None:
            return math.nan
        together = self._together
        length = 0.0 if isinstance(together, float) else float(tensors.norms(together[None])[0])
        return self._spread.value(self.norms, length**2)

    def _as_given(self, d: Tensor | float) -> Tensor | float:
        """In the precision of the updates, or an error before anything is learned."""
        if self._like is None or isinstance(d, float):
            return d
        given = tensors.cast(d, self._like)
        if not math.isfinite(tensors.norms(given[None])[0]):
            raise overflown(self._cohort.ids, self._factors * self.norms, given)
        return given
