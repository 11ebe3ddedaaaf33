"""All parts of a sampler: those that hold its state, and those that work on it."""

from dataclasses import dataclass, fields
from typing import Any

from kvib.estimators.difference import Difference
from kvib.estimators.guard import Guard
from kvib.index import Index
from kvib.sampler.check_in import CheckIn
from kvib.sampler.drawing import Drawing
from kvib.sampler.learning import Learning
from kvib.sampler.membership import Membership
from kvib.sampler.parts import Parts


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Parts):
    """The parts of a sampler that hold its state, and the parts that work on them.

    Look at all of it, and change nothing: only the sampler, or its journal, does that.
    """

    drawing: Drawing
    """Draws and opens rounds."""
    check_in: CheckIn
    """Answers clients that ask one by one."""
    learning: Learning
    """Estimates steps, and learns from rounds."""
    membership: Membership
    """Lets clients join and leave."""
    estimator: Difference | None
    """The configuration of `memory`."""

    @property
    def learned(self) -> Any:
        """What the policy has learned, as its own NamedTuple."""
        return self.learner.state

    @property
    def index(self) -> Index | None:
        """The scores of eligible clients. None where every draw looks at all clients."""
        return self.eligible.index


def assembled(parts: Parts, seed: int, estimator: Difference | None, guard: Guard | None) -> State:
    """The state of a sampler with these parts."""
    drawing = Drawing(parts, seed)
    return State(
        **{field.name: getattr(parts, field.name) for field in fields(parts)},
        drawing=drawing,
        check_in=CheckIn(parts, drawing),
        learning=Learning(parts, guard),
        membership=Membership(parts),
        estimator=estimator,
    )
