"""How much data clients say they have, and what to make of it."""

from collections.abc import Iterable

from kvib.checks import warn
from kvib.integrations.kit.offline import shown
from kvib.types import Key

GAP = 100.0
"""A size this many times as large as the next smaller one of another client is suspicious."""
SMALLEST, LARGEST = 1e-50, 1e50
"""Sizes that can be compared with each other."""
ENOUGH = 4
"""Clients that must have reported a size before one of them can stand out."""


class Sizes:
    """Sizes that clients reported, by key.

    Args:
        most: the largest size that is believed; None: any.
    """

    def __init__(self, most: float | None = None) -> None:
        self._most = most
        self._reported: dict[Key, float] = {}
        self._suspects: frozenset[Key] = frozenset()
        self._examples: tuple[float, float] | None = None
        self._said = False

    def __contains__(self, key: Key) -> bool:
        return key in self._reported

    def __bool__(self) -> bool:
        """Whether any client has reported one."""
        return bool(self._reported)

    @staticmethod
    def is_one(size: float) -> bool:
        """Whether a client can have this much data."""
        return SMALLEST <= size <= LARGEST

    def report(self, key: Key, size: float) -> None:
        """What a client says it has."""
        if self._most is not None and size > self._most:
            warn(
                f"client {key!r} says it has {size:g} data, and counts as max_weight={self._most:g}"
            )
            size = self._most
        self._reported[key] = size

    def of(self, key: Key) -> float:
        """What a client counts as: its own size, or the mean of those reported."""
        if key in self._reported:
            return self._reported[key]
        return sum(self._reported.values()) / len(self._reported) if self._reported else 1.0

    def suspect(self) -> None:
        """Warn where a few clients say they have far more than all others."""
        ranked = sorted(self._reported.items(), key=lambda item: item[1], reverse=True)
        few = range(len(ranked) // 2 if len(ranked) >= ENOUGH else 0)
        top = next((k + 1 for k in few if ranked[k][1] > GAP * ranked[k + 1][1]), 0)
        suspects = frozenset(key for key, _ in ranked[:top])
        if suspects - self._suspects:
            share = sum(size for _, size in ranked[:top]) / sum(size for _, size in ranked)
            warn(
                f"client {shown(key for key, _ in ranked[:top])} says it has {ranked[0][1]:g} "
                f"data, and the largest of the others {ranked[top][1]:g}: {share:.0%} of the "
                "objective is theirs; give max_weight=… to bound a client's size, or weights={…} "
                "where clients cannot be trusted"
            )
        self._suspects |= suspects

    def compare(self, examples: Iterable[float], way_out: str) -> None:
        """Warn once where clients that report no size train on different numbers of examples.

        Args:
            examples: that clients of a round trained on.
            way_out: how a client reports its size.
        """
        seen = [*(self._examples or ()), *examples]
        if self._said or self._reported or not seen:
            return
        self._examples = least, most = min(seen), max(seen)
        if most > least:
            self._said = True
            warn(
                f"clients train on {least:g} to {most:g} examples and report no size, so all "
                f"count the same, where FedAvg weighs by num-examples; {way_out}, or give "
                "weights={key: size, …}"
            )
