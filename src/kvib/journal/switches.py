"""The policies that a journal had one after another, as its file lists them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Description = Mapping[str, Any]
"""The entries by which a file describes itself (its table `about`)."""


class Switch(NamedTuple):
    """A policy that took over from another one in the middle of a run, as a journal records it.

    Rounds before `round` were drawn by the policy before, this round and later ones by the new
    policy. `Journalled.switch` writes the record, and `History.switches` reads it.

    Examples:
        >>> import os, tempfile, kvib
        >>> path = os.path.join(tempfile.mkdtemp(), "run.kvib")
        >>> with kvib.journalled(path, kvib.Uniform(), [1, 2, 3], budget=1) as sampler:
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, [1.0] * len(cohort))
        ...     learned = sampler.switch(kvib.BySize())
        >>> [switch] = kvib.journal.read(path).switches()
        >>> switch.round, switch.policy_before, switch.policy, switch.rounds
        (1, 'Uniform()', 'BySize()', 1)
    """

    round: int
    """The first round that the new policy draws."""
    policy_before: str
    """The policy that drew the rounds before."""
    procedure_before: str
    """The name of the procedure that drew the rounds before."""
    policy: str
    """The new policy."""
    procedure: str
    """The name of the procedure that draws from this round on."""
    rounds: int
    """The number of past rounds that the new policy learned from."""
    missing: int
    """The number of past rounds with feedback whose details had been removed."""

    def __str__(self) -> str:
        drawn = ""
        if self.procedure != self.procedure_before:
            drawn = f" (drawn {self.procedure_before}, then {self.procedure})"
        missing = f" and not from {self.missing} that were removed" if self.missing else ""
        return (
            f"policy {self.policy_before} until round {self.round}, then {self.policy}{drawn}, "
            f"which learned from {self.rounds} past rounds{missing}"
        )


def listed(about: Description) -> list[Switch]:
    """All switches of a journal, in order."""
    return [Switch(**entry) for entry in about.get("switches", [])]


def procedure_of(about: Description, round: int) -> str:
    """The name of the procedure that drew a round."""
    later = (switch.procedure_before for switch in listed(about) if switch.round > round)
    name: str = next(later, about["procedure"])
    return name


def since(about: Description) -> int:
    """The first round that the present policy draws."""
    return max((switch.round for switch in listed(about)), default=0)


def last_change(about: Description, name: str) -> Switch | None:
    """The switch that set the present policy, or procedure; None: it is the one of the beginning.

    Args:
        about: The entries by which the file describes itself.
        name: "policy" or "procedure".
    """
    changes = (s for s in listed(about) if getattr(s, f"{name}_before") != getattr(s, name))
    return max(changes, key=lambda switch: switch.round, default=None)
