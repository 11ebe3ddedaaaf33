"""DivFL: clients whose updates stand for those of all."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvib.types import BoolArray, FloatArray, IntArray


class DivFLState(NamedTuple):
    """The last update of every client."""

    updates: FloatArray
    """The last updates, [N, d]. d is 0 before a client was seen."""
    seen: BoolArray
    """Which clients were ever seen, [N]."""


@dataclass(frozen=True)
class DivFL:
    """A rule that chooses clients whose last updates stand for the updates of all.

    Two clients with similar updates do not both have to train, so one of them is chosen. The rule
    is greedy facility location: it adds one client at a time, and each time the client that brings
    all clients closest to the chosen. Clients that were never seen come first, in random order.

    It minimises Σ_i min_{j ∈ S} ‖g_i − g_j‖ over the last known updates g.

    Args:
        sketch: The length of the sketch that a simulation keeps of every update. Distances of
            sketches are those of updates on average, and exactly for models with no more numbers
            than that.

    Examples:
        >>> import kvib
        >>> selector = kvib.Selector(kvib.DivFL(), weights=[1, 1, 1, 1], budget=2)
        >>> updates = [[0.0, 1.0], [0.0, 1.1], [5.0, 0.0], [5.1, 0.0]]  # two pairs are alike
        >>> selector.draw(signals=updates).ids
        array([0, 2])

    References:
        Balakrishnan et al., "Diverse client selection for federated learning via submodular
        maximization", 2022.
    """

    sketch: int = 1024

    needs: ClassVar[str] = "the update (a vector, or a sketch of it)"

    def __post_init__(self) -> None:
        if self.sketch < 1:
            raise ValueError(f"sketch={self.sketch} is not a positive number")

    def start(self, weights: FloatArray, budget: int) -> DivFLState:
        """Return the state before the first round, in which no client was seen.

        Args:
            weights: λ of every client, [N].
            budget: The number of clients per round.
        """
        return DivFLState(np.zeros((len(weights), 0)), np.zeros(len(weights), dtype=np.bool_))

    def asks(
        self, state: DivFLState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """No client is asked before the choice: the last known updates suffice.

        Args:
            state: What the rule has learned.
            ids: The clients that can be chosen.
            size: The number of clients to choose.
            rng: The generator of the round.
        """
        return ids[:0]

    def choose(
        self, state: DivFLState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """Choose clients that were never seen, then greedily those that bring all clients closest.

        Args:
            state: What the rule has learned.
            ids: The clients that can be chosen.
            size: The number of clients to choose.
            rng: The generator of the round.
        """
        unseen, known = ids[~state.seen[ids]], ids[state.seen[ids]]
        chosen = unseen[rng.permutation(len(unseen))][:size].tolist()
        if len(chosen) == size:
            return np.array(chosen, dtype=np.int64)
        # Distances between the known updates, from ‖x − y‖² = ‖x‖² + ‖y‖² − 2x·y.
        x = state.updates[known]
        squared = (x * x).sum(axis=1)
        distance = np.sqrt(np.maximum(squared[:, None] + squared - 2 * x @ x.T, 0.0))
        # Add the client that makes the sum of distances to the nearest chosen client smallest.
        nearest = np.full(len(known), np.inf)
        free = np.ones(len(known), dtype=np.bool_)
        while len(chosen) < size:
            total = np.minimum(nearest[:, None], distance).sum(axis=0)
            best = int(np.where(free, total, np.inf).argmin())
            free[best] = False
            nearest = np.minimum(nearest, distance[:, best])
            chosen.append(int(known[best]))
        return np.array(chosen, dtype=np.int64)

    def observe(self, state: DivFLState, ids: IntArray, signals: Any) -> DivFLState:
        """Remember the updates of these clients.

        Args:
            state: What the rule has learned.
            ids: The clients that reported.
            signals: One update per client, or None where a client did not answer.
        """
        answered = np.array([signal is not None for signal in signals], dtype=np.bool_)
        if not answered.any():
            return state
        flat = np.stack([np.ravel(s) for s in signals if s is not None])
        if not np.isfinite(flat).all():
            raise ValueError("an update is not finite; pass None for a client that diverged")
        updates = state.updates
        if updates.shape[1] == 0:
            updates = np.zeros((len(state.seen), flat.shape[1]))
        if flat.shape[1] != updates.shape[1]:
            raise ValueError(
                f"updates have {flat.shape[1]} numbers, earlier ones {updates.shape[1]}; "
                "all must be of the same model or sketch"
            )
        updates[ids[answered]] = flat
        state.seen[ids[answered]] = True
        return state._replace(updates=updates)
