"""An estimator that remembers: only what is new about an update has to be sampled."""

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

FORGET = 0.9
"""Weight of the past in what β is learned from: about ten rounds count, since a memory that fills
earns a larger β."""
DOUBT = 2.0
"""Rounds of evidence for a memory that is worth nothing."""


@dataclass(frozen=True)
class Difference:
    """d = βΣλh + Σ_S λ(g − βh)·count/(q·expected), with h what is remembered of a client.

    Unbiased for every β that was fixed before the draw. β is learned from 0: the one that would
    have made the noise of past rounds least, Σw⟨g, h⟩/Σw‖h‖² with w = λ²(1−p)/p estimated from
    the drawn, less a doubt that fades. The policy learns from λ‖g − βh‖.

    The first sum is over those whom the estimate stands for: who can be drawn, and, where the
    sampler was told `availability`, also who happens to be away. Memory must not know whom the
    round drew: where rounds overlap, and clients at work are not drawn again, `begin` each round
    before the next is drawn.

    Args:
        memory: what to keep: `LastUpdates` (N·d numbers), `GroupMeans` (a few times d), or
            `LargestEntries` (a few per client).
    """

    memory: Memory = field(default_factory=LastUpdates)

    def start(self, weights: FloatArray) -> "Remembered":
        """Nothing is known yet."""
        return Remembered(self.memory, weights)


class Remembered(Part):
    """State of a difference estimator."""

    def __init__(self, memory: Memory, weights: FloatArray) -> None:
        self._memory, self._weights = memory, weights
        self._store: Store | None = None
        self.beta = 0.0
        """In force for the coming round."""
        self._product, self._square, self._rounds = 0.0, 0.0, 0.0
        self._now = np.zeros(2)

    def known(self, excluded: IntArray | None = None) -> Tensor | float:
        """βΣλh, [d], or 0; without those left out."""
        if self._store is None or self.beta == 0:
            return 0.0
        return self.beta * self._sum_without(self._store, excluded)

    def _sum_without(self, store: Store, excluded: IntArray | None) -> Tensor:
        """The shorter list is recalled: all but these, or only the others."""
        N = len(self._weights)
        if excluded is None or len(excluded) == 0:
            return store.total
        if 2 * len(excluded) <= N:
            return store.total - store.sum(excluded, self._weights[excluded])
        others = np.delete(np.arange(N), excluded)
        return store.sum(others, self._weights[others])

    def recalled(self, ids: IntArray) -> Rows | None:
        """βh of these clients, [m, d]; None where all are 0."""
        if self._store is None or self.beta == 0:
            return None
        return self.beta * self._store.recall(ids)

    def check(self, updates: Rows) -> None:
        """That they are as long as those remembered."""
        if self._store is not None and updates.shape[1] != self._store.total.shape[0]:
            raise ValueError(
                f"updates have {updates.shape[1]} entries, those remembered "
                f"{self._store.total.shape[0]}; all must be of one model"
            )

    def residuals(self, ids: IntArray, updates: Rows) -> Rows:
        """g − βh: what sampling still has to estimate, [m, d]."""
        recalled = self.recalled(ids)
        return updates if recalled is None else updates - tensors.like(updates, recalled)

    def keep(self, cohort: Cohort, updates: Rows) -> None:
        """Remember these updates, and how well their clients had been remembered."""
        store, w = self._opened(updates), cohort.noise
        recalled = store.recall(cohort.ids)
        self._now += (w @ tensors.dots(updates, recalled), w @ tensors.dots(recalled, recalled))
        store.keep(cohort.ids, cohort.weight, updates)

    def end_round(self) -> None:
        """β and memory for the next one."""
        if self._store is not None:
            self._store.settle()
        if self._now[1] > 0:
            self._product = FORGET * self._product + self._now[0]
            self._square = FORGET * self._square + self._now[1]
            self._rounds += 1
            trust = self._rounds / (self._rounds + DOUBT)
            self.beta = float(np.clip(trust * self._product / self._square, 0.0, 1.0))
        self._now[:] = 0

    def _opened(self, updates: Rows) -> Store:
        if self._store is None:
            self._store = self._memory.open(self._weights, updates)
        elif tensors.is_numpy(self._store.total) != tensors.is_numpy(updates):
            saved = self._store.packed()
            self._store = self._memory.open(self._weights, updates)
            self._store.restore(saved)
        return self._store

    ARRAYS = ("estimator",)

    def packed(self, clients: int) -> Arrays:
        """As arrays."""
        learned = np.array([self.beta, self._product, self._square, self._rounds])
        store = {} if self._store is None else self._store.packed()
        named = {f"estimator.memory.{name}": array for name, array in store.items()}
        return {"estimator.learned": learned, **named}

    def restore(self, saved: Saved) -> None:
        """What was saved. Updates that were seen must be remembered."""
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
