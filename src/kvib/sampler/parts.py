"""What a sampler knows, part by part."""

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
    population: Population
    sketches: Sketches
    cool_down: CoolDown
    step_length: StepLength
    """What the guard measures by."""
    memory: Remembered | None
    """What an estimator remembers, if there is one that does."""
    learner: Learner
    rates: Rates
    prices: Prices
    eligible: Eligible
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while anything changes."""

    def resize(self, learner: Learner, clients: int) -> None:
        """Let a policy know how many clients are here, and the budget for them."""
        learner.resized(clients, min(self.prices.clients_per_round, clients))

    def saved(self) -> list[Part]:
        """All of them that are there, in the order in which they are restored."""
        parts = (getattr(self, field.name) for field in fields(self))
        return [part for part in parts if isinstance(part, Part)]
