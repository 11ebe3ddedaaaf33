"""Tables of results: what is read from them, and what a few seeds can tell."""

import numpy as np
import pytest

pl = pytest.importorskip("polars")
pytest.importorskip("matplotlib")

from few_results import results  # noqa: E402
from kvib.lab import plots, seeds  # noqa: E402
from kvib.lab.tables import MissingResultsError, Results  # noqa: E402

SOME = results(
    [
        ("a", 1, 0, 4.0, 0.1),
        ("a", 1, 1, 2.0, 0.8),
        ("a", 1, 2, 3.0, 0.9),
        ("a", 0, 0, 4.0, 0.5),
        ("a", 0, 1, None, None),
        ("a", 0, 2, 1.0, 0.7),
        ("b", 0, 0, 5.0, 0.2),
    ],
    ["label", "seed", "round", "loss", "accuracy"],
)


def test_totals():
    """Of every seed in ascending order; a sum with gaps is none."""
    assert seeds.total(SOME, "a", "loss").tolist() == [np.inf, 9]
    assert seeds.total(SOME, "a", "loss", since=1).tolist() == [np.inf, 5]
    assert seeds.total(SOME, "a", "loss", since=2).tolist() == [1, 3]
    assert seeds.mean(SOME, "a", "loss").tolist() == [np.inf, 3]
    assert seeds.total(SOME, "b", "loss").tolist() == [np.inf]  # it ended before the others


def test_what_was_not_played_or_measured_has_no_total():
    with pytest.raises(MissingResultsError, match="no rounds of nobody"):
        seeds.total(SOME, "nobody", "loss")
    with pytest.raises(
        MissingResultsError, match="the results of x hold no regret; set exact_every"
    ):
        seeds.total(SOME, "a", "regret")


def test_budgets_and_rates_are_not_averaged():
    """Ten clients and fifty are two samplers, not two looks at one."""
    columns = ["label", "budget", "learning_rate", "seed", "round", "loss"]
    rows = [("a", K, rate, 0, 0, 1.0) for K in (5.0, 9.0) for rate in (0.1, 0.2)]
    mixed = results(rows, columns, samplers=("a",))
    _, [axis] = plots.panels(1)
    for given, name in ((mixed, "budget"), (mixed.where(budget=5.0), "learning_rate")):
        for ask in (
            lambda g: seeds.total(g, "a", "loss"),
            lambda g: seeds.rounds_to(g, "a", "loss", 1.0),
            lambda g: plots.curves(axis, g, "loss"),
        ):
            with pytest.raises(ValueError, match=rf"{name} of the rows is .*; choose one with"):
                ask(given)
    assert seeds.total(mixed.where(budget=5.0, learning_rate=0.2), "a", "loss").tolist() == [1]


def test_totals_are_not_of_single_precision():
    table = SOME.table.with_columns(pl.col("loss").cast(pl.Float32) + 1e8)
    assert seeds.total(Results(table, {}), "a", "loss").dtype == np.float64


def test_first_rounds_at_a_target():
    """Accuracy from below, losses from above."""
    assert seeds.rounds_to(SOME, "a", "accuracy", 0.7).tolist() == [2, 1]
    assert seeds.rounds_to(SOME, "a", "accuracy", 0.75).tolist() == [np.inf, 1]
    assert seeds.rounds_to(SOME, "a", "loss", 2.0).tolist() == [2, 1]
    assert seeds.rounds_to(SOME, "a", "loss", 1.5).tolist() == [2, np.inf]
    assert seeds.rounds_to(SOME, "b", "loss", 9.0).tolist() == [0]


def test_paired_seeds():
    """Seeds that only some samplers have played are left out, but for those with seeds of their
    own."""
    columns = ["label", "budget", "learning_rate", "seed", "round"]
    rows = [(label, 5.0, 0.1, seed, 0) for label, seed in (("a", 0), ("a", 1), ("b", 1))]
    assert results(rows, columns).paired().table.rows() == rows[1:]
    assert results(rows, columns, own=("b",)).paired().table.rows() == rows
    assert results(rows[:2], columns).paired().table.is_empty()


def test_paired_seeds_have_every_budget():
    columns = ["label", "budget", "learning_rate", "seed", "round"]
    rows = [(label, K, 0.1, seed, 0) for label in "ab" for K in (5.0, 9.0) for seed in (0, 1)]
    given = results(rows[:-1], columns)
    given.about["experiment"]["budgets"] = [5.0, 9.0]
    assert given.paired().table["seed"].unique().to_list() == [0]


@pytest.mark.parametrize(("scale", "low"), [("linear", -1.0), ("log", 0.3)])
def test_bands_are_cut_on_logarithmic_axes_only(scale, low):
    """One ± two: a logarithmic axis has no place for −1."""
    columns = ["label", "seed", "round", "loss"]
    rows = [
        ("a", seed, t, value) for seed, value in ((0, -1.0), (1, 1.0), (2, 3.0)) for t in (0, 1)
    ]
    _, [axis] = plots.panels(1)
    axis.set_yscale(scale)
    plots.curves(axis, results(rows, columns, samplers=("a",)), "loss")
    [band] = axis.collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(low)


def test_spreads():
    assert seeds.spread(np.array([1.0, 3.0])) == "2 ± 1.41"
    assert seeds.spread(np.array([1.0, 3.0]), ".2f") == "2.00 ± 1.41"
    assert seeds.spread(np.array([1.0]), ".0f") == "1"
    assert seeds.spread(np.array([1.0, np.inf, 2.0])) == "reached by 2 of 3 seeds"
    assert seeds.spread(np.array([np.nan])) == "reached by 0 of 1 seeds"
    assert seeds.spread(np.array([1.0, np.inf]), done="finished") == "finished by 1 of 2 seeds"


def test_intervals():
    """Of Student's law; nothing is said of one seed, or of seeds that did not get there."""
    assert seeds.interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((-0.484, 4.484), abs=1e-3)
    assert seeds.interval(np.array([1.0])) == (-np.inf, np.inf)
    assert seeds.interval(np.array([1.0, np.inf])) == (-np.inf, np.inf)
    assert seeds.ranged(np.array([1.0, 2.0, 3.0])) == "2.00 (-0.48 to 4.48)"
    assert seeds.ranged(np.array([1.0])) == "1.00"
    assert seeds.ranged(np.array([1.0, np.inf]), done="finished") == "finished by 1 of 2 seeds"
    t = pytest.importorskip("scipy.stats").t
    for n in (2, 6, 31):
        some = np.arange(n) / n
        assert seeds.interval(some) == pytest.approx(
            t.interval(0.95, n - 1, some.mean(), some.std(ddof=1) / np.sqrt(n)), abs=1e-3
        )
    low, high = seeds.interval(np.arange(100.0))  # a little wider than it must be
    assert t.interval(0.95, 99, 49.5, np.arange(100.0).std(ddof=1) / 10) == pytest.approx(
        (low, high), abs=0.2
    )
