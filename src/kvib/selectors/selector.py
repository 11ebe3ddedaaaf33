"""Selectors choose clients without probabilities: biased, for comparison only."""

import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kvib.checks import available_ids, checked_budget, checked_seed, checked_weights
from kvib.cohort import Cohort, by_id
from kvib.files import storage
from kvib.files.part import Saved
from kvib.randomness import generator
from kvib.sampler.open_rounds import OpenRounds
from kvib.types import Arrays, FloatArray, IntArray


class Rule(Protocol):
    """How a selector chooses: frozen configuration, with a state that the selector owns."""

    needs: ClassVar[str]
    """What `draw` and `update` are given, in words."""

    @property
    def sketch(self) -> int:
        """Numbers of the sketch of an update that the rule learns from; 0: it learns from losses
        that clients report before the draw."""

    def start(self, weights: FloatArray, budget: int) -> Any:
        """The state before the first round: a NamedTuple of arrays."""

    def asks(self, state: Any, ids: IntArray, size: int, rng: np.random.Generator) -> IntArray:
        """Which of these clients shall report before `size` of them are chosen; `choose` is given
        the same random numbers again."""

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

    def __init__(self, rule: Rule, weights: ArrayLike, budget: float, *, seed: int = 0) -> None:
        self.rule = rule
        self.weights = checked_weights(weights)
        self.budget = self._whole(budget)
        self.seed = checked_seed(seed)
        self._state = rule.start(self.weights, self.budget)
        self._ledger = OpenRounds()
        self._lock = threading.RLock()

    def _whole(self, budget: float) -> int:
        if checked_budget(budget, len(self.weights)) != int(budget):
            raise ValueError(f"budget {budget} is not a whole number; a selector takes exactly K")
        return int(budget)

    def __repr__(self) -> str:
        return f"<Selector of {len(self.weights)} clients: {self.rule!r}, budget {self.budget}>"

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def round(self) -> int:
        """How many rounds were drawn."""
        return self._ledger.round

    def asks(self, available: ArrayLike | None = None, budget: int | None = None) -> IntArray:
        """The clients whose signals the coming draw looks at, ascending: give them to `draw`.

        Args:
            available: who can be chosen, as in `draw`.
            budget: of the coming draw, as in `draw`.
        """
        ids = available_ids(available, len(self.weights))
        requested = self.budget if budget is None else self._whole(budget)
        with self._lock:
            size = min(requested, len(ids))
            return self.rule.asks(self._state, ids, size, self._rng()) if size else ids[:0]

    def _rng(self) -> np.random.Generator:
        return generator(self.seed, self._ledger.round, "select")

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
            signals: what the rule looks at (losses, or updates), one per client, or by id for
                some of them, as for those that `asks` names. For others it goes by what was
                reported last.
        """
        ids = available_ids(available, len(self.weights))
        requested = self.budget if budget is None else self._whole(budget)
        with self._lock:
            if signals is not None:
                self._state = self.rule.observe(self._state, *self._reported(signals))
            size, rng = min(requested, len(ids)), self._rng()
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

    def _reported(self, signals: Any) -> tuple[IntArray, Any]:
        """Who reported before a draw, and what."""
        if isinstance(signals, Mapping):
            return available_ids(list(signals), len(self)), [signals[i] for i in sorted(signals)]
        if len(signals) != len(self):
            raise ValueError(
                f"{len(signals)} signals for {len(self)} clients; give {self.rule.needs} of every "
                "client, or by id of some"
            )
        return np.arange(len(self)), signals

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

    def packed(self) -> Arrays:
        """What was learned, and which rounds are open, as arrays."""
        with self._lock:
            state, rounds = storage.pack("state", self._state), self._ledger.packed(len(self))
            arrays = {"weights": self.weights, **state, **rounds}
            copies = {name: np.array(array) for name, array in arrays.items()}
            about = {"rule": repr(self.rule), "budget": self.budget, "seed": self.seed}
            return storage.headed("selector", {**about, **self._ledger.about()}, copies)

    def unpacked(self, arrays: Arrays) -> "Selector":
        """The selector of the same rule, clients, budget and seed that was packed."""
        said, parts = storage.unheaded(arrays, "selector")
        mine = {"rule": repr(self.rule), "budget": self.budget, "seed": self.seed}
        differs = [name for name, value in mine.items() if said.get(name) != value]
        if differs or not np.array_equal(parts["weights"], self.weights):
            raise ValueError(
                f"these arrays are of another selector ({', '.join(differs) or 'weights'} differ); "
                "make it with the same rule, weights, budget and seed"
            )
        made = Selector(self.rule, self.weights, self.budget, seed=self.seed)
        made.weights = self.weights  # normalising again may change the last digit
        made._ledger.restore(Saved(said, parts))
        made._state = storage.unpack("state", made._state, parts, len(self))
        return made
