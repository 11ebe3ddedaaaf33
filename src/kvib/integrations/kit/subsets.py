"""The arrays of a model that a round trains: the arrays that most of its clients send."""

from collections import Counter
from collections.abc import Iterable, Set

from kvib.integrations.kit.arrays import BadReplyError

Names = Set[str]
SHOWN = 3
"""The number of names that a message lists."""


def agreed(model: Names, replies: Iterable[Names]) -> Names:
    """Find the set of array names that most replies have.

    Clients that train adapters or personal heads send only some arrays of the model. Each reply
    has one vote for its set of names, so one client that sends less than the others cannot make
    their replies wrong. If two sets have equally many votes, the larger one wins. If no reply has a
    valid set, the result is all names of the model.

    Args:
        model: The names of all arrays of the model.
        replies: The names of the arrays in each reply. Replies that are empty, or that name an
            array which the model does not have, get no vote.

    Examples:
        >>> from kvib.integrations.kit import agreed
        >>> model = {"adapter", "body", "head"}
        >>> sorted(agreed(model, [{"adapter"}, {"adapter"}, {"adapter", "head"}]))
        ['adapter']
        >>> sorted(agreed(model, []))
        ['adapter', 'body', 'head']
    """
    votes = Counter(frozenset(names) for names in replies if names and names <= model)
    return max(votes, key=lambda names: (votes[names], len(names), sorted(names)), default=model)


def must_agree(theirs: Names, most: Names, model: Names) -> None:
    """Refuse a reply whose arrays differ from those that most replies have.

    Args:
        theirs: The names of the arrays in the reply.
        most: The names that most replies have, from `agreed`.
        model: The names of all arrays of the model.

    Raises:
        BadReplyError: The reply names an array that the model does not have, or its names differ
            from `most`.

    Examples:
        >>> from kvib.integrations.kit import BadReplyError, must_agree
        >>> must_agree({"w"}, {"w"}, {"w", "b"})
        >>> try:
        ...     must_agree({"w", "b"}, {"w"}, {"w", "b"})
        ... except BadReplyError as error:
        ...     print(error)
        it sent 'b', 'w', and most replies have 'w': array 'b' is not in both
    """
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
    """The first names in order, as a part of a message."""
    first = ", ".join(map(repr, sorted(names)[:SHOWN]))
    more = len(names) - SHOWN
    return f"{first} and {more} more" if more > 0 else first or "no arrays"
