"""Flower: what the adapter takes of a server, beside what it wraps."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

import flower

pytestmark = pytest.mark.timing


@pytest.mark.parametrize(("parameters", "clients"), [(10**5, 20), (10**6, 20), (10**6, 100)])
def test_a_round_takes_at_most_one_and_a_half_of_stock(parameters, clients, tmp_path):
    """With a journal; strategies in turns in one process, the best of three runs."""
    ratios = []
    for attempt in range(3):
        folder = Path(tmp_path / str(attempt))
        folder.mkdir()
        ratios.append(flower.compared(parameters, clients, 9, folder)["journalled / stock"])
        if ratios[-1] <= 1.5:
            return
    pytest.fail(f"{ratios} of stock")
