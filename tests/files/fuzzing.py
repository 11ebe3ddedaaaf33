"""What damage does to files: ways to damage bytes, and a count of what reading them gave.

A damaged file may be refused with a ValueError, or say the same as the whole one. Anything else is
a defect: another state without a word, or an error that is not the documented one.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

REFUSED, IDENTICAL, SILENT = "refused", "identical", "SILENT"


def truncated(data, rng):
    """A file that ends early."""
    return data[: rng.integers(len(data))]


def flipped(data, rng):
    """One bit, or a few."""
    broken = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        broken[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(broken)


def _block(data, rng):
    """Where a block begins and how long it is: mostly short, sometimes a sector."""
    return int(rng.integers(len(data))), int(rng.choice([rng.integers(1, 64), 512]))


def zeroed(data, rng):
    """A block of zeros."""
    start, length = _block(data, rng)
    length = min(length, len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def scribbled(data, rng):
    """A block of noise."""
    start, length = _block(data, rng)
    length = min(length, len(data) - start)
    return data[:start] + rng.bytes(length) + data[start + length :]


def deleted(data, rng):
    """A block that is gone."""
    start, length = _block(data, rng)
    return data[:start] + data[start + length :]


def repeated(data, rng):
    """A block that is there once more, somewhere else."""
    (start, length), to = _block(data, rng), int(rng.integers(len(data)))
    return data[:to] + data[start : start + length] + data[to:]


def swapped(data, rng):
    """Two blocks that changed places."""
    length = min(int(rng.choice([rng.integers(1, 64), 512])), len(data) // 2)
    a = int(rng.integers(len(data) - 2 * length + 1))
    b = int(rng.integers(a + length, len(data) - length + 1))
    first, second = data[a : a + length], data[b : b + length]
    return data[:a] + second + data[a + length : b] + first + data[b + length :]


OF_BYTES = (truncated, flipped, flipped, flipped, zeroed, scribbled, deleted, repeated, swapped)
"""Damage that any file can take; single bits are what disks and wires change most."""


def outcome(read, whole):
    """What `read()` gave: refused, the same as the whole file, or a defect."""
    try:
        return IDENTICAL if read() == whole else SILENT
    except ValueError:
        return REFUSED
    except Exception as error:
        return f"FOREIGN {type(error).__name__}"


def fingerprint(arrays):
    """All that arrays say. An empty one says nothing but its name."""
    return {
        name: (array.dtype.str, array.shape if array.size else 0, array.tobytes())
        for name, array in arrays.items()
    }


@dataclass
class Tally:
    """How often each kind of damage to each file gave which outcome."""

    counts: Counter = field(default_factory=Counter)

    def add(self, file, damage, outcome):
        self.counts[file, damage, outcome] += 1

    def total(self, outcome):
        return sum(n for key, n in self.counts.items() if key[2] == outcome)

    @property
    def defects(self):
        return sum(n for key, n in self.counts.items() if key[2] not in (REFUSED, IDENTICAL))

    def __str__(self):
        """Two tables, by file and by damage, and a line that sums them up."""
        outcomes = [REFUSED, IDENTICAL, SILENT]
        outcomes += sorted({key[2] for key in self.counts} - set(outcomes))
        tables = [self._table(at, head, outcomes) for at, head in enumerate(("file", "damage"))]
        totals = ", ".join(f"{self.total(outcome)} {outcome}" for outcome in outcomes)
        return "\n\n".join([*tables, f"{sum(self.counts.values())} mutations: {totals}"])

    def _table(self, at, head, outcomes):
        rows = sorted({key[at] for key in self.counts})
        width = max(map(len, [head, *rows]))
        lines = ["  ".join([head.ljust(width), *(o.rjust(9) for o in outcomes)])]
        for row in rows:
            cells = [
                sum(n for key, n in self.counts.items() if (key[at], key[2]) == (row, outcome))
                for outcome in outcomes
            ]
            lines.append("  ".join([row.ljust(width), *(str(n).rjust(9) for n in cells)]))
        return "\n".join(lines)


def generator(seed, number):
    """Mutation `number` of a run is always the same, whatever the others were."""
    return np.random.default_rng([seed, number])
