"""The parts of a sampler that hold its state."""

import threading
from dataclasses import dataclass, field, fields

from kvib.clients.cool_down import CoolDown
from kvib.clients.population import Population
from kvib.clients.prices import Prices
from kvib.clients.rates import Rates
from kvib.estimators.difference import Remembered
from kvib.estimators.guard import StepLength
from kvib.estimators.sketches import Sketches
from kvib.files.part import Part
from kvib.sampler.eligible import Eligible
from kvib.sampler.learner import Learner
from kvib.sampler.open_rounds import OpenRounds


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts that go into a file, each after those that it depends on."""

    rounds: OpenRounds
    """Which rounds are open, answered or given up."""
    population: Population
    """All clients, with keys and weights."""
    sketches: Sketches
    """The sketches of last updates."""
    cool_down: CoolDown
    """The clients that wait."""
    step_length: StepLength
    """The typical step that the guard measures by."""
    memory: Remembered | None
    """The updates that an estimator remembers, if there is one."""
    learner: Learner
    """The policy, and what it has learned."""
    rates: Rates
    """The probabilities of availability and of an answer."""
    prices: Prices
    """What drawing a client takes from the budget."""
    eligible: Eligible
    """The clients that can be drawn."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """The lock that is held while anything changes."""

    def resize(self, learner: Learner, clients: int) -> None:
        """Pass the number of clients, and the budget for them, to a policy."""
        learner.resized(clients, min(self.prices.clients_per_round, clients))

    def saved(self) -> list[Part]:
        """The parts that this sampler has, in the order in which they are restored."""
        parts = (getattr(self, field.name) for field in fields(self))
        return [part for part in parts if isinstance(part, Part)]
