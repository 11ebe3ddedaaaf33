"""The small case: clients that are all known beforehand and always there."""

from kvib.cohort import Cohort
from kvib.integrations.kit.round import Round
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class KnownClients:
    """The rounds of a sampler that the user made. A `Fleet` is for clients that come and go.

    Args:
        sampler: over all clients.
        numbered: whether the framework calls its clients by their ids, whatever keys they have.
        sums_alone: whether the framework sums updates before an adapter sees them.
    """

    def __init__(
        self, sampler: AnySampler, *, numbered: bool = False, sums_alone: bool = False
    ) -> None:
        if sampler.policy.needs_norms:
            raise ValueError(
                f"{type(sampler.policy).__name__} must know all norms before it draws, which takes "
                "a full round; choose another policy, such as kvib.Forecast()"
            )
        sees = (sampler.state.memory, sampler.guard, sampler.state.sketches.size or None)
        if sums_alone and any(part is not None for part in sees):
            raise ValueError(
                "the framework sums updates before we see them: give a sampler without estimator, "
                "guard and sketch, such as kvib.Sampler(kvib.Forecast(), weights, budget)"
            )
        self.sampler = sampler
        self.round: Round | None = None
        """The last one that was drawn."""
        self._numbered = numbered

    @property
    def cohort(self) -> Cohort | None:
        """The cohort of the last round."""
        return None if self.round is None else self.round.cohort

    @property
    def refused(self) -> dict[Key, str]:
        """Why clients of the last round were not heard, by key."""
        return {} if self.round is None else self.round.refused

    def draw(self, budget: float | None = None) -> Round:
        """The next round, among all clients.

        Args:
            budget: in place of the sampler's; what exceeds the number of clients is cut off.
        """
        most = None if budget is None else min(budget, len(self.sampler))
        cohort = self.sampler.draw(budget=most)
        self.round = Round(self.sampler, cohort, cohort.ids.tolist() if self._numbered else None)
        return self.round
