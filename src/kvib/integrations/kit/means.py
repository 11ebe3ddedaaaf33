"""What clients measured, as one mean."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def averaged(measured: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, Any]:
    """Weighted means of the numbers, or lists of one length, that all clients measured."""
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
    """Names of numbers, or lists of one length, that are in all records."""
    return [name for name in records[0] if _of_one_shape([r.get(name) for r in records])]


def _of_one_shape(values: list[Any]) -> bool:
    try:
        return np.array(values).dtype.kind in "fiub"
    except (ValueError, OverflowError):  # a list where others have a number
        return False
