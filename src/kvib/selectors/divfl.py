"""DivFL."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvib.types import BoolArray, FloatArray, IntArray


class DivFLState(NamedTuple):
    """The last update of every client."""

    updates: FloatArray
    """[N, d]; d is 0 before anybody was seen."""
    seen: BoolArray


@dataclass(frozen=True)
class DivFL:
    """Clients whose updates stand for those of all: greedy facility location.

    Minimises Σ_i min_{j ∈ S} ‖g_i − g_j‖ over the last known updates, one client at a time.
    Clients never seen come first, in random order.

    Args:
        sketch: numbers that a simulation keeps of every update. Distances of sketches are those
            of updates on average, and exactly for models with no more numbers than that.

    Balakrishnan et al., "Diverse client selection for federated learning via submodular
    maximization", 2022.
    """

    sketch: int = 1024

    needs: ClassVar[str] = "the update (a vector, or a sketch of it)"

    def __post_init__(self) -> None:
        if self.sketch < 1:
            raise ValueError(f"sketch={self.sketch} is not a positive number")

    def start(self, weights: FloatArray, budget: int) -> DivFLState:
        """No client was seen yet."""
        return DivFLState(np.zeros((len(weights), 0)), np.zeros(len(weights), dtype=np.bool_))

    def asks(
        self, state: DivFLState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """No client: the last known updates suffice."""
        return ids[:0]

    def choose(
        self, state: DivFLState, ids: IntArray, size: int, rng: np.random.Generator
    ) -> IntArray:
        """The unseen, then greedily whoever brings all clients closest to the chosen."""
        unseen, known = ids[~state.seen[ids]], ids[state.seen[ids]]
        chosen = unseen[rng.permutation(len(unseen))][:size].tolist()
        if len(chosen) == size:
            return np.array(chosen, dtype=np.int64)
        x = state.updates[known]
        squared = (x * x).sum(axis=1)
        distance = np.sqrt(np.maximum(squared[:, None] + squared - 2 * x @ x.T, 0.0))
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
        """Remember updates; None: no answer."""
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
