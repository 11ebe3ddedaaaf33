"""The estimate of one round, fed with updates as they come."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvib import rows
from kvib.checks import LARGEST_NORM
from kvib.cohort import BoolArray, Cohort, FloatArray
from kvib.rows import Rows

if TYPE_CHECKING:
    from kvib.sampler import Sampler

Coefficients = Callable[[Cohort], FloatArray]


class NotFiniteError(ValueError):
    """A client's update has left the numbers."""

    def __init__(self, client: int, norm: float) -> None:
        self.client = client
        super().__init__(
            f"norm {norm} of client {client}: a norm is between 0 and {LARGEST_NORM:g}; leave out "
            "the update of a client that failed or diverged (None)"
        )


def among_heard(coefficients: Coefficients, cohort: Cohort, heard: BoolArray) -> float:
    """What a sum with the coefficients of all who were drawn is multiplied by, once it is known who
    was heard: 1 for the unbiased ones, more for a mean, which is one of those who answered."""
    drawn = float(coefficients(cohort)[heard].sum())
    return float(coefficients(cohort.take(heard)).sum()) / drawn if drawn > 0 else 1.0


class Estimation:
    """Σ coefficient·(g − βh) + βΣλh, accumulated in double precision, part by part.

    Made by `Sampler.begin`. Parts may come in any order; who is never added did not answer. What
    was remembered is taken as of the beginning, whatever other rounds do to the memory meanwhile.
    `heard`, where it is known before: a guard bounds the shares of a mean of those then.
    """

    def __init__(
        self,
        sampler: "Sampler",
        cohort: Cohort,
        coefficients: Coefficients,
        heard: BoolArray | None = None,
    ) -> None:
        self._sampler, self._cohort, self._coefficients = sampler, cohort, coefficients
        self._more = 1.0 if heard is None else among_heard(coefficients, cohort, heard)
        self._factors = coefficients(cohort) * self._more
        memory = sampler.remembered
        self._d: Any = 0.0 if memory is None else memory.known(cohort.left_out)
        self._recalled: Any = None if memory is None else memory.recalled(cohort.ids)
        self._kept: list[tuple[BoolArray, Rows]] = []
        self.norms = np.full(len(cohort), np.nan)
        """‖g − βh‖ of those who were added, as the policy will learn them."""
        guard = sampler.guard
        self._watch = None if guard is None else guard.watch(self._factors, sampler.usual_step)
        self._like: Any = None
        self.left_out = np.zeros(len(cohort), dtype=np.bool_)
        """Who sent no finite numbers and counts as silent, where a guard is on."""
        self._sketches = np.zeros((len(cohort), sampler.sketches.size))

    @property
    def cut(self) -> float:
        """What the guard has cut off so far: a bound on the bias of this round."""
        return 0.0 if self._watch is None else self._watch.cut

    def add(self, at: BoolArray, updates: Rows) -> Rows:
        """Take in the updates of the clients that `at` marks; returns g − βh, [m, d], of those that
        are finite: without a guard all must be."""
        self._check(at, updates)
        residuals = updates
        if self._recalled is not None:
            residuals = updates - rows.like(updates, self._recalled[at])
        lengths = rows.norms(residuals)
        sound = lengths <= LARGEST_NORM
        if not sound.all():
            at = self._leave_out(at, sound, lengths)
            updates, residuals = rows.some(updates, sound), rows.some(residuals, sound)
            lengths = lengths[sound]
        factors = self._factors[at]
        if self._watch is not None:
            shorter = self._watch.shorten(at, lengths, rows.norms(updates))
            factors, lengths = factors * shorter, lengths * shorter
            if (shorter < 1).any():  # what was cut must not come back from memory
                cut_off = residuals * rows.like(residuals, 1 - shorter[:, None])
                updates = updates - cut_off
        self.norms[at] = lengths
        if self._sampler.sketches.size:
            self._sketches[at] = rows.sketch(updates, self._sampler.sketches.size)
        self._d = rows.plus(self._d, rows.doubled(factors, residuals))
        self._like = residuals[:0]
        if self._sampler.remembered is not None:
            self._kept.append((np.array(at), updates))
        return residuals

    def _check(self, at: BoolArray, updates: Rows) -> None:
        if np.asarray(at).dtype != np.bool_ or np.shape(at) != (len(self._cohort),):
            raise ValueError("mark the clients by a mask: one boolean per client of the cohort")
        if int(np.count_nonzero(at)) != len(updates):
            raise ValueError(f"{len(updates)} updates for {np.count_nonzero(at)} marked clients")
        if not np.isnan(self.norms[at]).all():
            raise ValueError("a client was added before; add each once")
        if self._sampler.remembered is not None:
            self._sampler.remembered.check(updates)

    def _leave_out(self, at: BoolArray, sound: BoolArray, lengths: FloatArray) -> BoolArray:
        """Who is left of `at`. What is no number cannot be shortened: it counts as no answer."""
        gone = np.array(at)
        gone[at] = ~sound
        first, length = int(self._cohort.ids[gone][0]), float(lengths[~sound][0])
        if self._watch is None or (self.left_out | gone).sum() > len(self._cohort) / 2:
            raise NotFiniteError(first, length)  # where most explode it is the model that did
        self.left_out |= gone
        self._watch.leave_out(gone)
        warnings.warn(
            f"the update of client {first} in round {self._cohort.round} is not finite, and is "
            "left out as if it had not answered; lower its learning rate, or clip",
            stacklevel=3,
        )
        return at & ~gone

    def finish(self) -> Any:
        """The estimated step d; the sampler has learned from the round then. 0 if nobody came."""
        parts = [(self._cohort.take(at), updates) for at, updates in self._kept]
        heard = ~np.isnan(self.norms)
        more = among_heard(self._coefficients, self._cohort, heard) / self._more
        usual = 0.0 if self._watch is None else self._watch.total() * more
        self._sampler.finish(self._cohort, self.norms, self._sketches, usual, parts)
        self._sampler.cut = self.cut
        # with a memory there is more to d than the sum, but coefficients are unbiased then
        d = self._d if more == 1 else self._d * more
        return d if self._like is None else rows.like(self._like, d)
