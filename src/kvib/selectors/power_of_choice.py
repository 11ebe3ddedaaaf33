"""Power-of-Choice."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvib.types import FloatArray, IntArray


class PowerOfChoiceState(NamedTuple):
    """Weights, and the last loss of every client."""

    weight: FloatArray
    loss: FloatArray
    """[N]; ∞: never seen, so that it is chosen as soon as it is a candidate."""


@dataclass(frozen=True)
class PowerOfChoice:
    """The K highest losses among d candidates drawn in proportion to size.

    Args:
        candidates: d, at least the budget; twice the budget by default.

    Cho, Wang and Joshi, "Client selection in federated learning", 2020: π_pow-d where `draw` is
    given the losses of the candidates, who are those that `Selector.asks` names; π_rpow-d (the
    last known losses) where it is not. A simulation plays π_pow-d: every candidate receives the
    model and evaluates it on all of its data before the draw.
    """

    candidates: int | None = None

    needs: ClassVar[str] = "the local loss"
    sketch: ClassVar[int] = 0

    def start(self, weights: FloatArray, budget: int) -> PowerOfChoiceState:
        """No client was seen yet."""
        if self.candidates is not None and not budget <= self.candidates <= len(weights):
            raise ValueError(
                f"candidates={self.candidates} must lie between the budget {budget} and the "
                f"{len(weights)} clients"
            )
        return PowerOfChoiceState(weights, np.full(len(weights), np.inf))

    def asks(
        self, state: PowerOfChoiceState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """The candidates, drawn in proportion to size."""
        d = min(2 * size if self.candidates is None else self.candidates, len(ids))
        q = state.weight[ids] / state.weight[ids].sum()
        return np.sort(ids[rng.choice(len(ids), size=d, replace=False, p=q)])

    def choose(
        self, state: PowerOfChoiceState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """Keep the highest losses among the candidates."""
        candidates = self.asks(state, ids, size, rng)
        by_loss = np.argsort(-state.loss[candidates], kind="stable")
        return candidates[by_loss[:size]]

    def observe(self, state: PowerOfChoiceState, ids: IntArray, signals: Any) -> PowerOfChoiceState:
        """Remember losses; NaN: no answer."""
        losses = np.array([np.nan if s is None else s for s in signals], dtype=np.float64)
        if losses.ndim != 1 or np.isinf(losses).any():
            raise ValueError("losses must be finite numbers, one per client; NaN for no answer")
        known = ~np.isnan(losses)
        state.loss[ids[known]] = losses[known]
        return state
