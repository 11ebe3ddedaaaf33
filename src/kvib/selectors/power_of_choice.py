"""Power-of-Choice: the clients with the highest losses among a few candidates."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvib.types import FloatArray, IntArray


class PowerOfChoiceState(NamedTuple):
    """The weight and the last loss of every client."""

    weight: FloatArray
    """λ of every client, [N]."""
    loss: FloatArray
    """The last losses, [N]. A client that was never seen has ∞, so that it is chosen as soon as it
    is a candidate."""


@dataclass(frozen=True)
class PowerOfChoice:
    """A rule that chooses the K clients with the highest losses among d candidates.

    Clients that the model serves badly train more often. The candidates are drawn in proportion to
    size, without replacement.

    S = the K clients with the largest local loss f_i(x) among d candidates, drawn ∝ λ.

    Args:
        candidates: The number of candidates d, at least the budget. By default it is twice the
            budget.

    Examples:
        >>> import kvib
        >>> rule = kvib.PowerOfChoice(candidates=4)
        >>> selector = kvib.Selector(rule, weights=[1, 2, 3, 4], budget=2)
        >>> selector.draw(signals=[0.1, 0.9, 0.5, 0.7]).ids         # the two highest losses
        array([1, 3])

    References:
        Cho, Wang and Joshi, "Client selection in federated learning", 2020. It is π_pow-d where
        `draw` is given the losses of the candidates that `Selector.asks` names, and π_rpow-d (the
        last known losses) where it is not. A simulation runs π_pow-d: every candidate receives the
        model and evaluates it on all of its data before the draw.
    """

    candidates: int | None = None

    needs: ClassVar[str] = "the local loss"
    sketch: ClassVar[int] = 0

    def start(self, weights: FloatArray, budget: int) -> PowerOfChoiceState:
        """Return the state before the first round, in which no client was seen.

        Args:
            weights: λ of every client, [N].
            budget: The number of clients per round.
        """
        if self.candidates is not None and not budget <= self.candidates <= len(weights):
            raise ValueError(
                f"candidates={self.candidates} must lie between the budget {budget} and the "
                f"{len(weights)} clients"
            )
        return PowerOfChoiceState(weights, np.full(len(weights), np.inf))

    def asks(
        self, state: PowerOfChoiceState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """Draw the candidates in proportion to size, ascending.

        Args:
            state: What the rule has learned.
            ids: The clients that can be chosen.
            size: The number of clients to choose.
            rng: The generator of the round.
        """
        d = min(2 * size if self.candidates is None else self.candidates, len(ids))
        q = state.weight[ids] / state.weight[ids].sum()
        return np.sort(ids[rng.choice(len(ids), size=d, replace=False, p=q)])

    def choose(
        self, state: PowerOfChoiceState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """Choose the candidates with the highest losses.

        Args:
            state: What the rule has learned.
            ids: The clients that can be chosen.
            size: The number of clients to choose.
            rng: The generator of the round, as `asks` was given it.
        """
        candidates = self.asks(state, ids, size, rng)
        by_loss = np.argsort(-state.loss[candidates], kind="stable")
        return candidates[by_loss[:size]]

    def observe(self, state: PowerOfChoiceState, ids: IntArray, signals: Any) -> PowerOfChoiceState:
        """Remember the losses of these clients.

        Args:
            state: What the rule has learned.
            ids: The clients that reported.
            signals: One loss per client, NaN or None where a client did not answer.
        """
        losses = np.array([np.nan if s is None else s for s in signals], dtype=np.float64)
        if losses.ndim != 1 or np.isinf(losses).any():
            raise ValueError("losses must be finite numbers, one per client; NaN for no answer")
        known = ~np.isnan(losses)
        state.loss[ids[known]] = losses[known]
        return state
