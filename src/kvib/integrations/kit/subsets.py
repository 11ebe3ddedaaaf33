"""Which of a model's arrays a round trains: those that most of its clients send."""

from collections import Counter
from collections.abc import Iterable, Set

from kvib.integrations.kit.arrays import BadReplyError

Names = Set[str]
SHOWN = 3
"""Names that a message lists."""


def agreed(model: Names, replies: Iterable[Names]) -> Names:
    """The names that most replies have, the more of them where as many replies have others.

    Adapters and personal heads leave arrays out in all replies. One client that sends less than
    the others has one vote, so it cannot make the others wrong. All names where no reply has any.
    """
    votes = Counter(frozenset(names) for names in replies if names and names <= model)
    return max(votes, key=lambda names: (votes[names], len(names), sorted(names)), default=model)


def must_agree(theirs: Names, most: Names, model: Names) -> None:
    """Refuse a reply with other arrays than most have."""
    unknown = sorted(theirs - model)
    if unknown:
        raise BadReplyError(f"array {unknown[0]!r} is not in both its model and ours")
    if theirs != most:
        odd = min(theirs ^ most)
        raise BadReplyError(
            f"it sent {_listed(theirs)}, and most replies have {_listed(most)}: array {odd!r} is "
            "not in both"
        )


def _listed(names: Names) -> str:
    first = ", ".join(map(repr, sorted(names)[:SHOWN]))
    more = len(names) - SHOWN
    return f"{first} and {more} more" if more > 0 else first or "no arrays"
