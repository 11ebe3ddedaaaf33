"""What the round loop needs of whatever chooses its clients: a sampler, or a biased selector."""

from typing import Any, NamedTuple, Protocol, Self

from kvib.clients.rates import Rates
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.streaming import Coefficients, Estimation
from kvib.sim.engines.engine import Vector
from kvib.sim.stragglers import Stakes
from kvib.sim.training import Training
from kvib.types import Arrays, BoolArray, FloatArray, IntArray


class Coming(NamedTuple):
    """The round that is about to be drawn."""

    round: int
    model: Vector
    there: BoolArray | None
    """Who is there, [N]; None where all are, and need not be listed."""
    stakes: Stakes
    exact: bool
    """Whether exact metrics are due."""
    gram_bytes: float
    """Bytes that the updates of all clients may take for them."""
    coefficients: Coefficients
    training: Training


class Looked(NamedTuple):
    """What is known before a draw."""

    signals: Any
    """What the draw is made by, if it is made by anything: norms of all clients, say."""
    measured: dict[str, float]
    """Fields of the round's `Record`."""


class Chooser(Protocol):
    """Chooses the clients of every round, and learns from what they send."""

    coefficients: Coefficients
    """How updates are weighted, unless a simulation is given another way."""

    @property
    def guarantee(self) -> Guarantee:
        """Of its estimates with these coefficients, if all goes well."""

    @property
    def sampler(self) -> Any:
        """The sampler or selector that is played."""

    @property
    def weights(self) -> FloatArray:
        """λ of all clients, [N]."""

    @property
    def rates(self) -> Rates:
        """The rates that estimates are divided by."""

    @property
    def waiting(self) -> IntArray:
        """Clients that cannot be drawn yet."""

    @property
    def wants_updates(self) -> bool:
        """Whether it looks at single updates: their sum and their norms do not suffice."""

    def look(self, coming: Coming) -> Looked:
        """What has to be known before the draw."""

    def draw(self, coming: Coming, signals: Any) -> Cohort:
        """The clients of the round."""

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """An estimate to which updates are added; it learns from them."""

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """Learn from norms alone."""

    def about(self) -> dict[str, Any]:
        """What makes a run another one."""

    def check_checkpoint(self) -> None:
        """Refuse a run that could not go on from a checkpoint."""

    def packed(self) -> Arrays:
        """All that it has learned, as arrays."""

    def unpacked(self, arrays: Arrays) -> Self:
        """The chooser that was packed, configured as this one."""
