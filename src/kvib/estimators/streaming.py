"""The estimate of one round, computed while updates arrive."""

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
"""A function that gives the factor of each update of a cohort, [m]."""
Update = Any
"""One client's update: a `Tensor`, a number, or dicts and lists of them. An estimate has the same
form, which only the caller knows."""


class NotFiniteError(ValueError):
    """The update of a client is not finite, or its norm is too large.

    Args:
        client: The id of the client.
        norm: The norm of its update.
        way_out: What the user can do about it, the end of the message.
    """

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
    """The error for an estimate that its precision cannot hold.

    Args:
        ids: The clients of the round.
        shares: The norms of what each client adds to the estimate.
        total: The estimate.
    """
    kind, worst = str(total.dtype).removeprefix("torch."), int(np.nanargmax(shares))
    return ValueError(
        f"the estimate overflows {kind}: client {ids[worst]} adds most to it, a share of norm "
        f"{shares[worst]:g}; give the updates in {'float32' if '16' in kind else 'float64'}"
    )


def answer_correction(coefficients: Coefficients, cohort: Cohort, answered: BoolArray) -> float:
    """The factor that turns coefficients of the drawn clients into those of the ones that answered.

    It is 1 for unbiased coefficients, and larger for a mean, which is taken over the clients that
    answered.
    """
    drawn = float(coefficients(cohort)[answered].sum())
    return float(coefficients(cohort.take(answered)).sum()) / drawn if drawn > 0 else 1.0


def answers(cohort: Cohort, updates: Any) -> tuple[BoolArray, Sequence[Update]]:
    """Which clients of a cohort answered, and their updates in the same order."""
    values = by_id(cohort, updates) if isinstance(updates, Mapping) else _listed(updates)
    if len(values) != len(cohort):
        raise ValueError(
            f"{len(values)} updates for a cohort of {len(cohort)}; give one per client in the "
            "order of cohort.ids, None where there was no answer, or a mapping from client id to "
            "update"
        )
    answered = np.array([update is not None for update in values], dtype=np.bool_)
    return answered, values if answered.all() else [u for u in values if u is not None]


def _listed(updates: Any) -> Any:
    """Updates that can be visited more than once: generated ones become a list."""
    if hasattr(updates, "shape") or isinstance(updates, list | tuple):
        return updates
    if not isinstance(updates, Iterable) or isinstance(updates, str | bytes | Set):
        raise ValueError(
            f"updates {reprlib.repr(updates)} are not in an order; give a list in the order of "
            "cohort.ids, or a mapping from client id to update"
        )
    return list(updates)


def as_rows(updates: Sequence[Update] | Tensor) -> tuple[Rows, tuple[int, ...]]:
    """Updates of one shape as rows, [m, d], and their shape. They are arrays or tensors."""
    if hasattr(updates, "shape"):
        stacked = tensors.real(updates)
    else:
        stacked = tensors.stacked(_of_one_shape(updates))
    return tensors.floating(stacked.reshape((len(stacked), -1))), tuple(stacked.shape[1:])


def _of_one_shape(updates: Sequence[Update]) -> list[Tensor]:
    """Updates as arrays or tensors; an error where their shapes differ or one is nested."""
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
    """A round whose updates have all arrived."""

    cohort: Cohort
    """The clients of the round."""
    norms: FloatArray
    """‖g − βh‖ of the clients that answered, NaN for the others, [m]."""
    sketches: FloatArray
    """The sketches of the updates, [m, size]."""
    step_length: float
    """Σ coefficient·‖g‖, from which the guard learns."""
    kept: list[tuple[Cohort, Rows]]
    """The updates that a memory shall keep, with their clients."""
    variance: float = math.nan
    """The variance of the estimate as the updates show it; NaN where it is not known."""
    cut: float = 0.0
    """The amount that the guard cut off."""
    biased: bool = False
    """Whether the guard or the coefficients made the estimate biased."""


class Context(NamedTuple):
    """The parts of a sampler that an estimation uses, in their state at the beginning."""

    guard: Guard | None
    """The guard; None means no guard."""
    typical_step: float
    """The length of a typical step; NaN where it is not known yet."""
    memory: Remembered | None
    """The memory; None means no memory."""
    sketch: int
    """The number of entries of a sketch."""
    names: Callable[[IntArray], list[Key]]
    """A function from ids to the keys of clients, for messages."""
    silence: Callable[[Cohort, BoolArray], None]
    """A function that is called with the cohort and a mask of the clients that answered."""
    end: Callable[[Ended], Guarantee]
    """A function that learns from the round, and returns the guarantee of its estimate."""


class Estimation:
    """The estimate of one round, which takes in updates part by part.

    `Sampler.begin` makes it, `add` takes in updates in any order, and `finish` returns the step. A
    client that is never added counts as one that did not answer. The memory is used in its state at
    the beginning, whatever other rounds do to it meanwhile.

    d = Σ coefficient·(g − βh) + βΣλh, summed in double precision.

    Args:
        context: The parts of the sampler that the estimation uses.
        cohort: The clients of the round.
        coefficients: The function that gives the coefficients, `unbiased` or `self_normalised`.
        answered: A mask of the clients that answer, where it is known before. Then a guard bounds
            the shares of a mean of these clients.
        spread: The estimator of the variance, which costs one more sum. None means that the
            variance is not estimated.

    Examples:
        >>> import numpy as np, kvib
        >>> sampler = kvib.Sampler(kvib.Uniform(), weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> cohort = sampler.draw()
        >>> estimation = sampler.begin(cohort)
        >>> for client in cohort.ids:
        ...     residual = estimation.add(cohort.ids == client, np.array([[1.0, 2.0]]))
        >>> estimation.finish()
        array([1., 2.])
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
        """‖g − βh‖ of the clients that were added, as the policy will learn them, else NaN, [m]."""
        self.not_finite = np.zeros(len(cohort), dtype=np.bool_)
        """The clients whose updates are not finite, [m]. With a guard they count as silent."""
        self.guarantee: Guarantee = cohort.guarantee
        """The guarantee of the cohort. After `finish` it is the guarantee of the estimate."""
        self.variance = math.nan
        """The estimated variance of the estimate after `finish`; NaN where it is not known."""
        self._spread = spread
        self._weighted_sum: Tensor | float = 0.0
        """The sum Σ weight·(g − βh) of `Spread`, from which the variance is estimated."""
        self._like: Tensor | None = None
        self._sketches = np.zeros((len(cohort), context.sketch))

    def _weigh(self, answered: BoolArray | None) -> None:
        """Set the coefficients, and the bounds of the guard that follow from them."""
        self._answered, self._scale = answered, 1.0
        self._correction = (
            1.0
            if answered is None
            else answer_correction(self._coefficients, self._cohort, answered)
        )
        self._factors = self._coefficients(self._cohort) * self._correction
        guard, step_length = self._context.guard, self._context.typical_step
        self._guarded = None if guard is None else guard.over(self._factors, step_length)

    @property
    def cut(self) -> float:
        """The amount that the guard has cut off so far: a bound on the bias of this round."""
        if self._guarded is None:
            return 0.0
        return self._scale * (self._guarded.cut + self._guarded.most(self.not_finite))

    def add(self, at: BoolArray, updates: Rows) -> Rows:
        """Add the updates of some clients. The caller may overwrite the rows afterwards.

        Returns g − βh of the updates that are finite, shortened by the guard. Without a guard an
        update that is not finite is an error.

        Args:
            at: A mask of the cohort that marks the clients of these updates.
            updates: Their updates in the order of `cohort.ids`, [m, d].
        """
        rows = tensors.floating(tensors.real(updates))
        return self.borrow(at, rows if self._context.memory is None else tensors.copied(rows))

    def borrow(self, at: BoolArray, updates: Rows) -> Rows:
        """Add the updates of some clients without a copy, and return what `add` returns.

        Args:
            at: A mask of the cohort that marks the clients of these updates.
            updates: Their updates in the order of `cohort.ids`, [m, d]. The rows must not change
                before `finish`.
        """
        self._check(at, updates)
        recalled = None if self._recalled is None else tensors.like(updates, self._recalled[at])
        residuals = updates if recalled is None else updates - recalled
        lengths = tensors.norms(residuals)
        # leave out what is not finite
        finite = lengths <= LARGEST_NORM
        if not finite.all():
            at = self._without(at, finite, lengths)
            updates, residuals = tensors.some(updates, finite), tensors.some(residuals, finite)
            recalled = None if recalled is None else tensors.some(recalled, finite)
            lengths = lengths[finite]
        # shorten what is too long
        if self._guarded is not None:
            shorter = self._guarded.shorten(at, lengths, tensors.norms(updates))
            if (shorter < 1).any():  # what was cut must not enter the memory
                residuals = residuals * tensors.like(residuals, shorter[:, None])
                updates = residuals if recalled is None else recalled + residuals
                lengths = lengths * shorter
        # add the rest to the sums
        self.norms[at] = lengths
        if self._context.sketch:
            self._sketches[at] = tensors.sketch(updates, self._context.sketch)
        self._d = tensors.plus(self._d, tensors.doubled(self._factors[at], residuals))
        if self._spread is not None and not self._spread.norms_suffice:
            weighted = tensors.doubled(self._spread.weights[at], residuals)
            self._weighted_sum = tensors.plus(self._weighted_sum, weighted)
        self._like = residuals[:0]
        if self._context.memory is not None:
            self._kept.append((np.array(at), updates))
        return residuals

    def weigh(self, at: BoolArray, lengths: FloatArray) -> FloatArray:
        """Take in some clients by the norms of their updates, and return their factors, [m].

        The caller computes Σ factor·g itself, where the updates lie, and gives it to `finish`. A
        factor is 0 where the norm is not finite.

        Args:
            at: A mask of the cohort that marks these clients.
            lengths: The norms of their updates in the order of `cohort.ids`, [m].
        """
        if self._context.memory is not None or self._context.sketch:
            raise ValueError(
                "this sampler remembers updates or sketches of them, for which norms do not "
                "suffice; give the updates to add"
            )
        self._check(at, lengths[:, None])
        finite = lengths <= LARGEST_NORM
        marked = at if finite.all() else self._without(at, finite, lengths)
        norms = lengths[finite]
        shorter = np.ones(len(norms))
        if self._guarded is not None:
            shorter = self._guarded.shorten(marked, norms, norms)
        self.norms[marked] = norms * shorter
        factors = np.zeros(len(lengths))
        factors[finite] = self._factors[marked] * shorter
        return factors

    def _check(self, at: BoolArray, updates: Rows) -> None:
        """Refuse updates that do not fit the mask, or clients that were added before."""
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

    def _without(self, at: BoolArray, finite: BoolArray, lengths: FloatArray) -> BoolArray:
        """The mask `at` without clients whose updates are not finite, which cannot be shortened."""
        dropped = np.array(at)
        dropped[at] = ~finite
        if self._guarded is None:
            raise NotFiniteError(int(self._cohort.ids[dropped][0]), float(lengths[~finite][0]))
        self.not_finite |= dropped
        if self._answered is not None:  # all updates arrive at once, so a mean is over the rest
            self._weigh(self._answered & ~dropped)
        return at & ~dropped

    def _warn_of_dropped(self, answered: BoolArray) -> None:
        """Warn of the clients that were left out.

        Where more clients were left out than answered, the model has exploded: an error.
        """
        dropped = self._cohort.ids[self.not_finite]
        if len(dropped) > np.count_nonzero(answered):
            raise NotFiniteError(
                int(dropped[0]),
                math.nan,
                "most updates of the round are like that, so it is the model that exploded; go "
                "back to an earlier one, and lower the learning rate",
            )
        if len(dropped):
            names = ", ".join(map(str, self._context.names(dropped)))
            warn(
                f"updates of round {self._cohort.round} are not finite, and left out as if their "
                f"clients had not answered: {names}; lower the learning rate, or clip"
            )
        self._context.silence(self._cohort, answered | self.not_finite)

    def finish(self, added: Tensor | None = None, variance: float | None = None) -> Any:
        """End the round: return the estimated step d, and let the sampler learn.

        The step is 0.0 if no client answered and nothing is remembered.

        Args:
            added: Σ factor·g of the clients given to `weigh`, in double precision.
            variance: The variance of the estimate, where the caller has estimated it. A journal
                keeps it.
        """
        if added is not None:
            self._d = added if self._like is None else tensors.plus(self._d, added)
        kept = [(self._cohort.take(at), updates) for at, updates in self._kept]
        answered = ~np.isnan(self.norms)
        self._warn_of_dropped(answered)
        drawn_to_answered = answer_correction(self._coefficients, self._cohort, answered)
        scale = drawn_to_answered / self._correction
        # With a memory d is more than the sum, but then coefficients are unbiased and scale is 1.
        d = self._in_precision(self._d if scale == 1 else self._d * scale)
        step_length = 0.0 if self._guarded is None else self._guarded.total() * scale
        if variance is None:
            variance = self._seen_variance()
        self.variance, self._scale = variance, scale
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
        """The variance of the estimate from what was added; NaN where it is not known."""
        if self._spread is None:
            return math.nan
        total = self._weighted_sum
        length = 0.0 if isinstance(total, float) else float(tensors.norms(total[None])[0])
        return self._spread.value(self.norms, length**2)

    def _in_precision(self, d: Tensor | float) -> Tensor | float:
        """d in the precision of the updates; an overflow is an error before anything is learned."""
        if self._like is None or isinstance(d, float):
            return d
        step = tensors.cast(d, self._like)
        if not math.isfinite(tensors.norms(step[None])[0]):
            raise overflown(self._cohort.ids, self._factors * self.norms, step)
        return step
