"""Everything that a sampler is made of."""

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
    """The parts of a sampler, and those who work on them.

    All of it is to be looked at: only the sampler, or its journal, changes anything.
    """

    drawing: Drawing
    check_in: CheckIn
    learning: Learning
    membership: Membership
    estimator: Difference | None
    """The configuration of `memory`."""

    @property
    def learned(self) -> Any:
        """What the policy has learned: its own NamedTuple."""
        return self.learner.state

    @property
    def index(self) -> Index | None:
        """The scores of those who can be drawn; None where every draw looks at all clients."""
        return self.eligible.index


def assembled(parts: Parts, seed: int, estimator: Difference | None, guard: Guard | None) -> State:
    """The state of a sampler that knows this."""
    drawing = Drawing(parts, seed)
    return State(
        **{field.name: getattr(parts, field.name) for field in fields(parts)},
        drawing=drawing,
        check_in=CheckIn(parts, drawing),
        learning=Learning(parts, guard),
        membership=Membership(parts),
        estimator=estimator,
    )
