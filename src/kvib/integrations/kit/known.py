"""The simple case: all clients are known beforehand and always available."""

from kvib.cohort import Cohort
from kvib.integrations.kit.round import Round
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class KnownClients:
    """Draws the rounds of a sampler that the user made. Use `Fleet` for clients that come and go.

    Args:
        sampler: The sampler over all clients.
        numbered: Whether the framework names its clients by their ids 0 to N − 1. False means that
            it names them by the sampler's keys.
        sums_alone: Whether the framework sums updates before an adapter sees them. A sampler with
            an estimator, a guard or a sketch is refused then.

    Examples:
        >>> import kvib
        >>> from kvib.integrations.kit import KnownClients
        >>> keys = ["ann", "bob", "eve"]
        >>> sampler = kvib.Sampler(kvib.Uniform(), [1, 1, 2], budget=3, keys=keys, seed=0)
        >>> clients = KnownClients(sampler)
        >>> round = clients.draw()
        >>> round.keys
        ['ann', 'bob', 'eve']
        >>> round.learn([0.5, 0.1, 0.2])
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
        """The round that was drawn last. None before the first."""
        self._numbered = numbered

    @property
    def cohort(self) -> Cohort | None:
        """The cohort of the last round. None before the first."""
        return None if self.round is None else self.round.cohort

    @property
    def refused(self) -> dict[Key, str]:
        """The reasons why clients of the last round did not answer, by key."""
        return {} if self.round is None else self.round.refused

    def draw(self, budget: float | None = None) -> Round:
        """Draw the next round from all clients.

        Args:
            budget: The budget of this round. None means the sampler's own. A budget above the
                number of clients counts as that number.
        """
        most = None if budget is None else min(budget, len(self.sampler))
        cohort = self.sampler.draw(budget=most)
        self.round = Round(self.sampler, cohort, cohort.ids.tolist() if self._numbered else None)
        return self.round
