"""The contract between the round loop and what chooses its clients: a sampler or a selector."""

from typing import Any, NamedTuple, Protocol, Self

from kvib.clients.rates import Rates
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.streaming import Coefficients, Estimation
from kvib.sim.engines.engine import Vector
from kvib.sim.stragglers import Stakes
from kvib.sim.training import Training
from kvib.types import Arrays, BoolArray, FloatArray, IntArray


class UpcomingRound(NamedTuple):
    """The round that is about to be drawn."""

    round: int
    """The number of the round, from 0."""
    model: Vector
    """The server's model, [d]."""
    available: BoolArray | None
    """Which clients are available, [N]. None means all, without a list of them."""
    stakes: Stakes
    """The share of every client's update in the estimate."""
    exact: bool
    """Whether exact metrics are due."""
    gram_bytes: float
    """The bytes that the updates of all clients may take where metrics need inner products."""
    coefficients: Coefficients
    """How updates are weighted."""
    training: Training
    """The task and the engine that trains its clients."""


class BeforeDraw(NamedTuple):
    """The signals and measures that are computed before a draw."""

    signals: Any
    """The signals that the draw uses, such as the norms of all clients. None means no signals."""
    measured: dict[str, float]
    """Fields of the round's `Record`."""


class Chooser(Protocol):
    """A chooser picks the clients of every round and learns from what they send."""

    coefficients: Coefficients
    """How updates are weighted, unless a simulation is given other coefficients."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of estimates with these coefficients, if all clients answer as expected."""

    @property
    def sampler(self) -> Any:
        """The sampler or selector itself."""

    @property
    def weights(self) -> FloatArray:
        """λ of all clients, [N]."""

    @property
    def rates(self) -> Rates:
        """The rates that estimates are divided by."""

    @property
    def waiting(self) -> IntArray:
        """The clients that cannot be drawn because of the cool-down."""

    @property
    def wants_updates(self) -> bool:
        """Whether single updates are needed: their sum and their norms do not suffice."""

    def look(self, upcoming: UpcomingRound) -> BeforeDraw:
        """The signals that the draw needs, and exact metrics if they are due."""

    def draw(self, upcoming: UpcomingRound, signals: Any) -> Cohort:
        """The clients of the round."""

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """An estimate to which updates are added. The chooser learns from them."""

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """Learn from norms alone."""

    def about(self) -> dict[str, Any]:
        """The options that a checkpoint must share with this chooser."""

    def check_checkpoint(self) -> None:
        """Refuse a run that could not go on from a checkpoint."""

    def packed(self) -> Arrays:
        """All that the chooser has learned, as arrays."""

    def unpacked(self, arrays: Arrays) -> Self:
        """The chooser that was packed, with the options of this one."""
