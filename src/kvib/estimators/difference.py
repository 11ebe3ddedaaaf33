"""The difference estimator: it remembers updates, so that only what is new has to be sampled."""

from dataclasses import dataclass, field

import numpy as np

from kvib.cohort import Cohort
from kvib.estimators import tensors
from kvib.estimators.memory import LastUpdates, Memory, Store
from kvib.estimators.tensors import Rows
from kvib.files import intact
from kvib.files.intact import FINITE, NOT_NEGATIVE, Range, demand
from kvib.files.part import Part, Saved
from kvib.types import Arrays, FloatArray, IntArray, Tensor

BETA_DECAY = 0.9
"""Weight of the past in the sums from which β is learned. About ten rounds count, since a memory
that fills up deserves a larger β."""
DOUBT = 2.0
"""Rounds of evidence against the memory that β starts with."""


@dataclass(frozen=True)
class Difference:
    """An estimator that remembers updates and samples only what is new about them.

    The server predicts the update of every client by what it remembers, and the cohort corrects the
    prediction. Noise comes only from the corrections, which are small where clients return often
    and their updates persist.

    d = βΣλh + Σ_S λ(g − βh)·count/(q·expected), with h what is remembered of a client.

    The estimate is unbiased for every β that is fixed before the draw. β is learned from 0. It is
    the β that would have made the noise of past rounds least, Σw⟨g, h⟩/Σw‖h‖² with w = λ²(1−p)/p
    estimated from the drawn clients, times a trust n/(n + 2) that grows with the number n of rounds
    that tested the memory. The policy learns from λ‖g − βh‖.

    The first sum is over the clients that the estimate stands for: those that can be drawn and,
    where the sampler knows the `availability`, also those that happen to be unavailable. The memory
    must not depend on the draw of its own round. Where rounds overlap, and clients at work are not
    drawn again, call `begin` for each round before the next is drawn.

    Args:
        memory: What the server remembers: `LastUpdates` (N·d numbers), `GroupMeans` (a few times
            d numbers), or `LargestEntries` (a few numbers per client).

    Examples:
        Four clients pull in four directions, and the full step is 0. Without a memory the error of
        a round is 0 or 2.83. With a memory it shrinks.

        >>> import numpy as np, kvib
        >>> own = np.array([[4.0, 0.0], [0.0, 4.0], [-4.0, 0.0], [0.0, -4.0]])
        >>> estimator = kvib.Difference(kvib.LastUpdates())
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1] * 4, budget=2, estimator=estimator, seed=0)
        >>> for _ in range(30):
        ...     cohort = sampler.draw()
        ...     step = sampler.step(cohort, own[cohort.ids])
        >>> float(np.linalg.norm(step).round(2))
        0.2

    References:
        Särndal, Swensson and Wretman 1992 for the difference estimator of survey sampling.
    """

    memory: Memory = field(default_factory=LastUpdates)

    def start(self, weights: FloatArray) -> "Remembered":
        """Start with an empty memory.

        Args:
            weights: The weights λ of all clients, [N].
        """
        return Remembered(self.memory, weights)


class Remembered(Part):
    """The state of a difference estimator: its memory and β.

    Args:
        memory: What the server remembers.
        weights: The weights λ of all clients, [N].
    """

    def __init__(self, memory: Memory, weights: FloatArray) -> None:
        self._memory, self._weights = memory, weights
        self._store: Store | None = None
        self.beta = 0.0
        """How far the memory is trusted in the coming round."""
        # Σw⟨g, h⟩ and Σw‖h‖² of past rounds, their number, and both sums of the current round
        self._product, self._square, self._rounds = 0.0, 0.0, 0.0
        self._current = np.zeros(2)

    def known(self, excluded: IntArray | None = None) -> Tensor | float:
        """βΣλh over all clients but the excluded ones, [d]; 0.0 if β = 0 or nothing is kept."""
        if self._store is None or self.beta == 0:
            return 0.0
        return self.beta * self._sum_without(self._store, excluded)

    def _sum_without(self, store: Store, excluded: IntArray | None) -> Tensor:
        """Σλh over all clients but the excluded ones, [d].

        It recalls the shorter list: the excluded clients, or the others.
        """
        N = len(self._weights)
        if excluded is None or len(excluded) == 0:
            return store.total
        if 2 * len(excluded) <= N:
            return store.total - store.sum(excluded, self._weights[excluded])
        others = np.delete(np.arange(N), excluded)
        return store.sum(others, self._weights[others])

    def recalled(self, ids: IntArray) -> Rows | None:
        """βh of these clients, [m, d]; None if β = 0 or nothing is kept."""
        if self._store is None or self.beta == 0:
            return None
        return self.beta * self._store.recall(ids)

    def check(self, updates: Rows) -> None:
        """Refuse updates of another length than those remembered."""
        if self._store is not None and updates.shape[1] != self._store.total.shape[0]:
            raise ValueError(
                f"updates have {updates.shape[1]} entries, those remembered "
                f"{self._store.total.shape[0]}; all must be of one model"
            )

    def residuals(self, ids: IntArray, updates: Rows) -> Rows:
        """g − βh of these clients, the part that sampling still has to estimate, [m, d]."""
        recalled = self.recalled(ids)
        return updates if recalled is None else updates - tensors.like(updates, recalled)

    def keep(self, cohort: Cohort, updates: Rows) -> None:
        """Remember these updates, and measure how well the memory predicted them."""
        store, w = self._opened(updates), cohort.noise
        recalled = store.recall(cohort.ids)
        self._current += (w @ tensors.dots(updates, recalled), w @ tensors.dots(recalled, recalled))
        store.keep(cohort.ids, cohort.weight, updates)

    def end_round(self) -> None:
        """Set β and the memory for the next round."""
        if self._store is not None:
            self._store.settle()
        if self._current[1] > 0:
            self._product = BETA_DECAY * self._product + self._current[0]
            self._square = BETA_DECAY * self._square + self._current[1]
            self._rounds += 1
            trust = self._rounds / (self._rounds + DOUBT)
            self.beta = float(np.clip(trust * self._product / self._square, 0.0, 1.0))
        self._current[:] = 0

    def _opened(self, updates: Rows) -> Store:
        """The store: opened with the first updates, rebuilt where arrays follow tensors or back."""
        if self._store is None:
            self._store = self._memory.open(self._weights, updates)
        elif tensors.is_numpy(self._store.total) != tensors.is_numpy(updates):
            saved = self._store.packed()
            self._store = self._memory.open(self._weights, updates)
            self._store.restore(saved)
        return self._store

    ARRAYS = ("estimator",)

    def packed(self, clients: int) -> Arrays:
        """β, its sums and the memory as arrays."""
        learned = np.array([self.beta, self._product, self._square, self._rounds])
        store = {} if self._store is None else self._store.packed()
        named = {f"estimator.memory.{name}": array for name, array in store.items()}
        return {"estimator.learned": learned, **named}

    def restore(self, saved: Saved) -> None:
        """Take over the saved state; an error where updates were seen and none is remembered."""
        arrays, store = saved.part("estimator"), saved.part("estimator.memory")
        intact.names("estimator", arrays, ("learned", *(f"memory.{name}" for name in store)))
        stepped = saved.about["usual step"] is not None or saved.arrays["sketches.returns"][-1] > 0
        learned, ranges = (
            arrays["learned"],
            (Range("0 to 1", 0.0, 1.0), FINITE, *[NOT_NEGATIVE] * 2),
        )
        intact.shaped("estimator.learned", learned, (4,))
        for value, allowed in zip(learned, ranges, strict=True):
            intact.within("estimator.learned", value, allowed)
        self.beta, self._product, self._square, self._rounds = learned.tolist()
        demand(store or not (stepped or learned.any()), "estimator.memory is missing")
        self._weights = saved.arrays["weights"].astype(np.float64)
        self._store = self._memory.restored(self._weights, store) if store else None
