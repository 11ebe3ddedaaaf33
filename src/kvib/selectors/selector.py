"""Selectors choose clients without probabilities: biased, for comparison only."""

import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import available_ids, by_id, checked_budget, checked_seed, checked_weights
from kvib.cohort import Cohort, FloatArray, IntArray
from kvib.ledger import Ledger
from kvib.randomness import generator


class Rule(Protocol):
    """How a selector chooses: frozen configuration, with a state that the selector owns."""

    needs: ClassVar[str]
    """What `draw` and `update` are told, in words."""

    def start(self, weights: FloatArray, budget: int) -> Any:
        """The state before the first round."""

    def choose(self, state: Any, ids: IntArray, size: int, rng: np.random.Generator) -> IntArray:
        """`size` of these clients."""

    def observe(self, state: Any, ids: IntArray, signals: Any) -> Any:
        """Learn what these clients reported."""


class Selector:
    """The face of a Sampler for rules that are not unbiased.

    Cohorts say `guarantee="biased"`: aggregate them with `kvib.self_normalised`.

    Examples:
        >>> import kvib
        >>> power = kvib.PowerOfChoice(candidates=3)
        >>> selector = kvib.Selector(power, weights=[1, 2, 3, 4], budget=2)
        >>> cohort = selector.draw(signals=[0.1, 0.9, 0.5, 0.7])       # every client's loss
        >>> len(cohort), cohort.guarantee
        (2, 'biased')
    """

    def __init__(self, rule: Rule, weights: ArrayLike, budget: int, *, seed: int = 0) -> None:
        self.rule = rule
        self.weights = checked_weights(weights)
        self.budget = self._whole(budget)
        self.seed = checked_seed(seed)
        self._state = rule.start(self.weights, self.budget)
        self._ledger = Ledger()
        self._lock = threading.RLock()

    def _whole(self, budget: float) -> int:
        if checked_budget(budget, len(self.weights)) != int(budget):
            raise ValueError(f"budget {budget} is not a whole number; a selector takes exactly K")
        return int(budget)

    def __repr__(self) -> str:
        return f"<Selector of {len(self.weights)} clients: {self.rule!r}, budget {self.budget}>"

    def draw(
        self,
        available: ArrayLike | None = None,
        budget: int | None = None,
        signals: Any = None,
    ) -> Cohort:
        """Choose the clients of the next round.

        Args:
            available: who can be chosen, one boolean per client or a list of ids.
            budget: for this round instead of the selector's; at most the number available.
            signals: what the rule looks at, one per client (losses, or updates), if all are known
                now; else it goes by what `update` reported last.
        """
        ids = available_ids(available, len(self.weights))
        requested = self.budget if budget is None else self._whole(budget)
        with self._lock:
            if signals is not None:
                if len(signals) != len(self.weights):
                    raise ValueError(
                        f"{len(signals)} signals for {len(self.weights)} clients; "
                        f"give {self.rule.needs} of every client"
                    )
                everybody = np.arange(len(self.weights))
                self._state = self.rule.observe(self._state, everybody, signals)
            rng = generator(self.seed, self._ledger.round, "select")
            size = min(requested, len(ids))
            chosen = np.sort(self.rule.choose(self._state, ids, size, rng)) if size else ids
            cohort = Cohort(
                ids=chosen,
                count=np.ones(len(chosen), dtype=np.int64),
                expected=np.ones(len(chosen)),  # given what it saw, the choice was certain
                weight=self.weights[chosen],
                budget=float(size),
                requested=float(requested),
                guarantee="biased",
                by_chance=False,
            )
            return self._ledger.open(cohort)

    def update(self, cohort: Cohort, signals: Any) -> None:
        """Learn what a cohort reported: losses or updates, in the order of its ids or by id."""
        if isinstance(signals, Mapping):
            signals = by_id(cohort, signals)
        if len(signals) != len(cohort):
            raise ValueError(
                f"{len(signals)} signals for a cohort of {len(cohort)}; give {self.rule.needs} of "
                "each in the order of cohort.ids"
            )
        with self._lock:
            self._ledger.check(cohort)
            self._state = self.rule.observe(self._state, cohort.ids, signals)
            self._ledger.close(cohort)
