"""Selectors choose clients without probabilities. They are biased, for comparison only."""

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
    """How a selector chooses: a frozen configuration, whose state the selector owns."""

    needs: ClassVar[str]
    """What `draw` and `update` are given, in words."""

    @property
    def sketch(self) -> int:
        """The length of the sketch of an update that the rule learns from. It is 0 for a rule that
        learns from losses, which clients report before the draw."""

    def start(self, weights: FloatArray, budget: int) -> Any:
        """Return the state before the first round, a NamedTuple of arrays.

        Args:
            weights: λ of every client, [N].
            budget: The number of clients per round.
        """

    def asks(self, state: Any, ids: IntArray, size: int, rng: np.random.Generator) -> IntArray:
        """Name the clients that shall report before the choice.

        Args:
            state: What the rule has learned.
            ids: The clients that can be chosen.
            size: The number of clients to choose.
            rng: The generator of the round. `choose` is given the same random numbers again.
        """

    def choose(self, state: Any, ids: IntArray, size: int, rng: np.random.Generator) -> IntArray:
        """Choose `size` of these clients.

        Args:
            state: What the rule has learned.
            ids: The clients that can be chosen.
            size: The number of clients to choose.
            rng: The generator of the round.
        """

    def observe(self, state: Any, ids: IntArray, signals: Any) -> Any:
        """Learn what these clients reported, and return the new state.

        Args:
            state: What the rule has learned.
            ids: The clients that reported.
            signals: One signal per client (a loss or an update), None where there was no answer.
        """


class Selector:
    """A selector chooses clients by a biased rule, and is used like a `Sampler`.

    The rule chooses by losses or updates, not by probabilities. So there is nothing to divide by,
    and no coefficient can make the step unbiased. Cohorts say `guarantee="biased"`:
    aggregate them with `kvib.self_normalised`.

    Args:
        rule: The rule that chooses, `PowerOfChoice` or `DivFL`.
        weights: The weight of every client: any positive numbers, which are normalised inside.
        budget: The number of clients per round, a whole number.
        seed: The seed, which decides all random choices together with the round number.

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
        self._rounds = OpenRounds()
        self._lock = threading.RLock()

    def _whole(self, budget: float) -> int:
        """The budget as a whole number, checked."""
        if checked_budget(budget, len(self.weights)) != int(budget):
            raise ValueError(f"budget {budget} is not a whole number; a selector takes exactly K")
        return int(budget)

    def __repr__(self) -> str:
        return f"<Selector of {len(self.weights)} clients: {self.rule!r}, budget {self.budget}>"

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def round(self) -> int:
        """The number of rounds that were drawn."""
        return self._rounds.round

    def asks(self, available: ArrayLike | None = None, budget: int | None = None) -> IntArray:
        """Name the clients whose signals the coming draw looks at, ascending.

        Give their signals to `draw`.

        Args:
            available: The clients that can be chosen, as in `draw`.
            budget: The budget of the coming draw, as in `draw`.
        """
        ids = available_ids(available, len(self.weights))
        requested = self.budget if budget is None else self._whole(budget)
        with self._lock:
            size = min(requested, len(ids))
            return self.rule.asks(self._state, ids, size, self._rng()) if size else ids[:0]

    def _rng(self) -> np.random.Generator:
        """A new generator of the coming round: each has the same random numbers."""
        return generator(self.seed, self._rounds.round, "select")

    def draw(
        self,
        available: ArrayLike | None = None,
        budget: int | None = None,
        signals: Any = None,
    ) -> Cohort:
        """Choose the clients of the next round.

        Args:
            available: The clients that can be chosen: one boolean per client, or a list of ids.
            budget: The budget of this round instead of the selector's. No more than the available
                clients are chosen.
            signals: What the rule looks at (losses, or updates). Give one per client, or a mapping
                from the ids of some clients, for example those that `asks` names. For the other
                clients the rule goes by what they reported last.
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
            return self._rounds.open(cohort)

    def _reported(self, signals: Any) -> tuple[IntArray, Any]:
        """The clients that reported before a draw, and their signals."""
        if isinstance(signals, Mapping):
            return available_ids(list(signals), len(self)), [signals[i] for i in sorted(signals)]
        if len(signals) != len(self):
            raise ValueError(
                f"{len(signals)} signals for {len(self)} clients; give {self.rule.needs} of every "
                "client, or by id of some"
            )
        return np.arange(len(self)), signals

    def update(self, cohort: Cohort, signals: Any) -> None:
        """Learn what a cohort reported.

        Args:
            cohort: A cohort that this selector drew.
            signals: Losses or updates, in the order of `cohort.ids` or as a mapping from ids.
        """
        if isinstance(signals, Mapping):
            signals = by_id(cohort, signals)
        if len(signals) != len(cohort):
            raise ValueError(
                f"{len(signals)} signals for a cohort of {len(cohort)}; give {self.rule.needs} of "
                "each in the order of cohort.ids"
            )
        with self._lock:
            self._rounds.check(cohort)
            self._state = self.rule.observe(self._state, cohort.ids, signals)
            self._rounds.close(cohort)

    def packed(self) -> Arrays:
        """Pack what was learned, and which rounds are open, into arrays."""
        with self._lock:
            state, rounds = storage.pack("state", self._state), self._rounds.packed(len(self))
            arrays = {"weights": self.weights, **state, **rounds}
            copies = {name: np.array(array) for name, array in arrays.items()}
            about = {"rule": repr(self.rule), "budget": self.budget, "seed": self.seed}
            return storage.headed("selector", {**about, **self._rounds.about()}, copies)

    def unpacked(self, arrays: Arrays) -> "Selector":
        """Restore the selector that `packed` packed, from one with the same configuration.

        Args:
            arrays: What `packed` returned, by a selector of the same rule, clients, budget and
                seed.
        """
        header, parts = storage.unheaded(arrays, "selector")
        options = {"rule": repr(self.rule), "budget": self.budget, "seed": self.seed}
        differs = [name for name, value in options.items() if header.get(name) != value]
        if differs or not np.array_equal(parts["weights"], self.weights):
            raise ValueError(
                f"these arrays are of another selector ({', '.join(differs) or 'weights'} differ); "
                "make it with the same rule, weights, budget and seed"
            )
        selector = Selector(self.rule, self.weights, self.budget, seed=self.seed)
        selector.weights = self.weights  # normalising again may change the last digit
        selector._rounds.restore(Saved(header, parts))
        selector._state = storage.unpack("state", selector._state, parts, len(self))
        return selector
