"""What the committed measurements of scale promise; `benchmarks/scale.py` and `journal.py` make
them."""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
FLAT = ["K-Vib", "K-Vib, floor by size", "by size"]


def rows(file, title, **what):
    measured = json.loads((RESULTS / file).read_text())["results"][title]
    return [row for row in measured if all(row[name] == value for name, value in what.items())]


def rounds_of(sampler):
    return {row["clients"]: row for row in rows("scale.json", ROUND, sampler=sampler)}


ROUND = "A round of 1,000 clients"


@pytest.mark.parametrize("sampler", FLAT)
def test_a_round_does_not_grow_with_the_population(sampler):
    by_clients = rounds_of(sampler)
    largest = by_clients["10^8"]
    assert largest["round ms"] < 2
    assert largest["round ms"] <= 6 * by_clients["10^5"]["round ms"]
    assert largest["all coins / round"] >= 1_000
    assert largest["built s"] < 60


def test_exactly_k_grows_with_the_depth_of_a_tree_alone():
    by_clients = rounds_of("K-Vib, exactly K")
    assert by_clients["10^8"]["round ms"] <= 6 * by_clients["10^5"]["round ms"]
    assert by_clients["10^8"]["all coins / round"] >= 1_000


def test_bytes_per_client():
    for sampler in ("K-Vib", "K-Vib, exactly K"):
        assert rounds_of(sampler)["10^8"]["bytes per client"] <= 32


def test_a_long_journal():
    journals = rows("journal.json", "A long journal")
    assert journals
    for row in journals:
        assert row["rounds"] >= 10**5
        assert row["K"] == 1_000
        assert row["opening s"] < 5
        assert row["GB"] < 1.5
