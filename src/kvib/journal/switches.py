"""What a journal says of the policies that it had one after another."""

from collections.abc import Mapping
from typing import Any, NamedTuple

About = Mapping[str, Any]
"""What a file says of itself."""


class Switch(NamedTuple):
    """Another policy that took over in the middle of a run."""

    round: int
    """The first round that was left to it."""
    policy_before: str
    procedure_before: str
    policy: str
    procedure: str
    rounds: int
    """Past rounds that it learned from."""
    missing: int
    """Past rounds with feedback whose details had been removed."""

    def __str__(self) -> str:
        drawn = ""
        if self.procedure != self.procedure_before:
            drawn = f" (drawn {self.procedure_before}, then {self.procedure})"
        missing = f" and not from {self.missing} that were removed" if self.missing else ""
        return (
            f"policy {self.policy_before} until round {self.round}, then {self.policy}{drawn}, "
            f"which learned from {self.rounds} past rounds{missing}"
        )


def listed(about: About) -> list[Switch]:
    """All of them, in order."""
    return [Switch(**said) for said in about.get("switches", [])]


def procedure_of(about: About, round: int) -> str:
    """With what a round was drawn."""
    later = (switch.procedure_before for switch in listed(about) if switch.round > round)
    name: str = next(later, about["procedure"])
    return name


def since(about: About) -> int:
    """The first round that was left to the policy of today."""
    return max((switch.round for switch in listed(about)), default=0)


def last_change(about: About, name: str) -> Switch | None:
    """When the policy, or the procedure, became what it is; None: it is as it was begun."""
    changes = (s for s in listed(about) if getattr(s, f"{name}_before") != getattr(s, name))
    return max(changes, key=lambda switch: switch.round, default=None)
