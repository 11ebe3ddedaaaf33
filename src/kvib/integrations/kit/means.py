"""The weighted means of what clients measured."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def averaged(measured: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, Any]:
    """Average the numbers, or the lists of one length, that all clients measured.

    Args:
        measured: Pairs of a record, which maps names to numbers or lists, and its weight. A name
            that is missing in one record, or has another form there, is left out of the result.

    Examples:
        >>> from kvib.integrations.kit import averaged
        >>> averaged([({"loss": 1.0, "note": "a"}, 1.0), ({"loss": 2.0, "note": "b"}, 3.0)])
        {'loss': 1.75}
    """
    records = list(measured)
    if not records:
        return {}
    weights = np.array([weight for _, weight in records])
    weights = weights / weights.sum()
    means = {}
    for name in alike([record for record, _ in records]):
        means[name] = (weights @ np.array([record[name] for record, _ in records])).tolist()
    return means


def alike(records: list[Mapping[str, Any]]) -> list[str]:
    """List the names under which all records have a number, or all a list of one length.

    Args:
        records: Records that map names to values. There must be at least one.

    Examples:
        >>> from kvib.integrations.kit import alike
        >>> alike([{"loss": 1.0, "steps": [1, 2]}, {"loss": 2, "steps": [1, 2, 3]}])
        ['loss']
    """
    return [name for name in records[0] if _of_one_shape([record.get(name) for record in records])]


def _of_one_shape(values: list[Any]) -> bool:
    """Whether all values are numbers, or all are lists of numbers of one length."""
    try:
        return np.array(values).dtype.kind in "fiub"
    except (ValueError, OverflowError):  # a list next to a number, or lists of different length
        return False
