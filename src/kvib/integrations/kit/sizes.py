"""The amounts of data that clients report, and warnings about them."""

from collections.abc import Iterable

from kvib.checks import warn
from kvib.integrations.kit.offline import shown
from kvib.types import Key

GAP = 100.0
"""A size this many times as large as the next smaller one of another client is suspicious."""
SMALLEST, LARGEST = 1e-50, 1e50
"""The range of sizes that can be compared with each other."""
ENOUGH = 4
"""Clients that must have reported a size before one of them can stand out."""


class Sizes:
    """The sizes that clients reported, by key.

    Args:
        most: The largest size that is believed. None means any size.
    """

    def __init__(self, most: float | None = None) -> None:
        self._most = most
        self._reported: dict[Key, float] = {}
        self._suspects: frozenset[Key] = frozenset()
        self._examples: tuple[float, float] | None = None
        """The least and the most examples that clients without a size trained on."""
        self._warned = False
        """Whether `compare` has warned."""

    def __contains__(self, key: Key) -> bool:
        """Whether this client has reported a size."""
        return key in self._reported

    def __bool__(self) -> bool:
        """Whether any client has reported a size."""
        return bool(self._reported)

    @staticmethod
    def is_one(size: float) -> bool:
        """Whether a client can have this much data."""
        return SMALLEST <= size <= LARGEST

    def report(self, key: Key, size: float) -> None:
        """Note the size that a client reports, cut to the largest that is believed."""
        if self._most is not None and size > self._most:
            warn(
                f"client {key!r} says it has {size:g} data, and counts as max_weight={self._most:g}"
            )
            size = self._most
        self._reported[key] = size

    def of(self, key: Key) -> float:
        """The size that a client counts as: its own, or the mean of the reported sizes."""
        if key in self._reported:
            return self._reported[key]
        return sum(self._reported.values()) / len(self._reported) if self._reported else 1.0

    def suspect(self) -> None:
        """Warn where a few clients report far larger sizes than all others."""
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
            examples: The numbers of examples that clients of a round trained on.
            way_out: The way in which a client reports its size, for the warning.
        """
        seen = [*(self._examples or ()), *examples]
        if self._warned or self._reported or not seen:
            return
        self._examples = least, most = min(seen), max(seen)
        if most > least:
            self._warned = True
            warn(
                f"clients train on {least:g} to {most:g} examples and report no size, so all "
                f"count the same, where FedAvg weighs by num-examples; {way_out}, or give "
                "weights={key: size, …}"
            )
