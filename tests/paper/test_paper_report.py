"""The page and the figures are functions of the result files."""

import itertools
import json
import re
import shutil
from dataclasses import asdict

import numpy as np
import pytest

from kvib.lab.files import find, read, read_all
from places import ROOT

pl = pytest.importorskip("polars")
pytest.importorskip("matplotlib")

from paper_results import drawn_otherwise, made, plausible  # noqa: E402

from few_results import results  # noqa: E402
from kvib.lab import plots as lab_plots  # noqa: E402
from kvib.lab import seeds, summary, tables  # noqa: E402
from kvib.lab.tables import MissingResultsError, Results  # noqa: E402
from paper import (  # noqa: E402
    beyond,
    claims,
    comparing,
    figures,
    goals,
    plots,
    rates,
    stragglers,
    toy,
)
from paper.claim import NOT, PARTLY, REPRODUCED, UNTESTED, lowest, paired  # noqa: E402
from paper.report import page  # noqa: E402

RESULTS = ROOT / "results"
FILES = sorted((ROOT / "experiments").rglob("*.toml"))
PNG = b"\x89PNG\r\n\x1a\n"


# The page we commit


def test_the_page_is_that_of_the_committed_results():
    text = page(RESULTS)
    assert text.encode() == (ROOT / "docs/reproduction.md").read_bytes()
    for figure in re.findall(r"\]\((figures/.*?)\)", text):
        assert (ROOT / "docs" / figure).read_bytes()[:8] == PNG


def changed(folder, name, column):
    """Copies of all results, with K-Vib's numbers in one column of one file a tenth off."""
    shutil.copytree(RESULTS, folder)
    path = folder / f"{name}.parquet"
    ours = pl.col("label").str.starts_with("K-Vib")
    off = pl.when(ours).then(pl.col(column) * 1.1).otherwise(pl.col(column))
    pl.read_parquet(path).with_columns(off.alias(column)).write_parquet(path)
    return folder


def test_the_page_of_our_own_samplers():
    assert beyond.page(RESULTS) == (ROOT / "docs/beyond.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("synthetic", "regret"),
        ("synthetic", "variance"),
        ("synthetic", "train_loss"),
        ("synthetic-budgets", "regret"),
        ("femnist-v1", "accuracy"),
        ("femnist-v3", "train_loss"),
    ],
)
def test_other_results_give_another_page(tmp_path, name, column):
    folder = changed(tmp_path / "results", name, column)
    assert page(folder) != (ROOT / "docs/reproduction.md").read_text()


def test_every_figure_that_has_results_is_drawn(tmp_path):
    drawn = [name for name in figures.FIGURES if not figures.missing(name, RESULTS)]
    assert len(drawn) > 2
    for name in drawn:
        [path] = figures.draw(name, RESULTS, tmp_path, ("png",))
        assert path == tmp_path / f"{name}.png"
        assert path.read_bytes()[:8] == PNG
        assert path.stat().st_size > 5000


# Stragglers


def test_the_page_of_stragglers():
    assert stragglers.page(RESULTS) == (ROOT / "docs/stragglers.md").read_text(encoding="utf-8")


def straggled(folder, ends):
    """Results in which training ends at ends(setting, policy, way) of what all clients reach."""
    ways = {"": "unbiased", ", estimated": "estimated", ", average": "average"}
    for name in ("stragglers-none", *stragglers.SETTINGS):
        given = find(name, ROOT / "experiments")
        table = plausible(given).with_columns(train_loss=pl.lit(1.0, pl.Float32))
        for policy, (suffix, way) in itertools.product(stragglers.POLICIES, ways.items()):
            at = pl.col("label") == policy + suffix
            loss = ends(name, policy, way) + 0.001 * pl.col("seed")
            table = table.with_columns(
                pl.when(at).then(loss).otherwise("train_loss").alias("train_loss"),
                pl.when(at & (way == "average")).then(None).otherwise("bias").alias("bias"),
            )
        made(folder, given, table)
    return folder


def answers(folder):
    return [claim.finding(folder).verdict for claim in stragglers.CLAIMS]


def test_verdicts_on_stragglers_follow_the_numbers(tmp_path):
    shift = {"stragglers": 0.0, "stragglers-large": -0.1, "stragglers-small": 0.1}
    biased = straggled(
        tmp_path / "biased", lambda name, _, way: 1 + (way == "average") * shift.get(name, 0)
    )
    everyone = "uniform and K-Vib and by size and Forecast"
    assert answers(biased)[:4] == [
        f"with {everyone}",
        "no",
        "lower in 4 of 12, higher in 4",
        f"at most 3% with {everyone}",
    ]
    noisy = straggled(
        tmp_path / "noisy",
        lambda name, policy, way: 2.0 if policy == "uniform" and way != "average" else 1.0,
    )
    assert answers(noisy)[:3] == [
        "with K-Vib and by size and Forecast",
        f"with {everyone}",
        "lower in 3 of 12, higher in 0",
    ]


def test_the_page_of_stragglers_without_results(tmp_path):
    text = stragglers.page(tmp_path)
    assert text.count("No results yet of `stragglers") == 3
    assert text.count("| open |") == len(stragglers.CLAIMS)
    given = find("stragglers", ROOT / "experiments")
    made(tmp_path, given, plausible(given).filter(pl.col("label") != "K-Vib"))
    part = stragglers.page(tmp_path)
    assert part.count("No results yet of `stragglers") == 2
    assert "| unbiased, rates known | Forecast | 70% |" in part
    assert "| unbiased, rates known | K-Vib |" not in part


# All figures and all claims, from results made here


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for path in FILES:
        for given in read_all(path):
            made(folder, given, plausible(given))
    for task in goals.OPTIONS:
        drawn_otherwise(folder, task)
    return folder


def test_every_claim_is_judged(everything):
    text = page(everything)
    findings = [claim.finding(everything) for claim in claims.CLAIMS]
    for claim, finding in zip(claims.CLAIMS, findings, strict=True):
        known = (REPRODUCED, PARTLY, NOT, UNTESTED, "a possible cause", "no cause", "not faster")
        assert finding.verdict in known
        assert (
            f"| {claim.says} ({claim.where}) | {finding.measured} | **{finding.verdict}**" in text
        )
        assert "nan" not in finding.measured + finding.reason
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(claims.CLAIMS)
    assert {row.count("|") for row in rows} == {6}
    assert "| open |" not in text
    for name in figures.PAPER:
        assert f"\n## {name}\n\n![{name}](figures/{name}.png)\n" in text
    assert text == page(everything)


def test_claims_without_results_are_open(tmp_path):
    text = page(tmp_path)
    needy = [claim for claim in claims.CLAIMS if claim.needs]
    assert text.count("| open |") == len(needy)
    for claim in needy:
        assert f"| no results of {', '.join(claim.needs)} yet | open |" in text
    assert re.findall(r"\n## (.*)\n", text) == ["example-1", "example-2"]


def test_the_page_tells_of_diverged_and_missing_runs(everything, tmp_path):
    given = read(ROOT / "experiments/synthetic-gamma.toml")
    made(tmp_path, given, plausible(given), diverged=("γ = 1e-8", "γ = 1.0"))
    path = tmp_path / "synthetic-gamma.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "missing": ["some-run_seed9"]}))
    text = page(tmp_path)
    gone = [run.name for run in given.runs() if run.sampler.label in ("γ = 1e-8", "γ = 1.0")]
    assert f"\nDiverged: {', '.join(gone)}.\n" in text
    assert "\nNot finished yet: some-run_seed9.\n" in text
    assert "25 runs of 500 rounds" in text


def test_a_target_that_no_run_reaches(tmp_path):
    """No winner, no warning, no claim of having seen anything."""
    for version in ("v1", "v2", "v3"):
        given = find(f"femnist-{version}", ROOT / "experiments")
        made(tmp_path, given, plausible(given, best=0.5))
    text = page(tmp_path)
    assert "K-Vib reached by 0 of 3 seeds" in text
    by_words = {claim.says: claim.finding(tmp_path) for claim in claims.CLAIMS}
    assert by_words["2× faster on FEMNIST v2"].verdict == NOT
    assert by_words["Vrb and Mabs do not outperform uniform on FEMNIST"] is None


def finding(words, folder):
    return next(claim for claim in claims.CLAIMS if words in claim.says).finding(folder)


def test_a_sampler_that_was_not_played(tmp_path):
    """Nothing was compared, so nothing was reproduced."""
    given = read(ROOT / "experiments/synthetic.toml")
    made(tmp_path, given, plausible(given).filter(pl.col("label") != "Mabs"))
    assert finding("lowest regret", tmp_path) is None
    text = page(tmp_path)
    assert "nan" not in text
    assert "| too few results of synthetic yet | open |" in text


TEXT = "2× faster than the baselines with σ = 1"


def fallen(folder, ends, missing=(), tail=1, spike=None):
    """Training losses of AG News that fall in a straight line from 1 to these, 60 rounds later; all
    but for uniform's last, where there is a spike."""
    given = find(f"text-agnews-{tail}", ROOT / "experiments")
    t = pl.Series("round", np.arange(0, 61, 10), pl.Int32)
    parts = [
        plausible(given)
        .filter(pl.col("label") == sampler.label)
        .head(7)
        .with_columns(t, (1 - (1 - ends.get(sampler.label, 0.5)) * t / 60).alias("train_loss"))
        for sampler in given.samplers
        if sampler.label not in missing
    ]
    table = pl.concat(parts)
    if spike is not None:
        last = (pl.col("label") == "uniform") & (pl.col("round") == 60)
        loss = pl.when(last).then(spike).otherwise(pl.col("train_loss")).alias("train_loss")
        table = table.with_columns(loss)
    made(folder, given, table)


@pytest.mark.parametrize(
    ("end", "verdict", "told"),
    [
        (0.0, REPRODUCED, "K-Vib is there after 30, 2.00 times as fast"),
        (0.3, PARTLY, "K-Vib is there after 43, 1.40 times as fast"),
        (0.44, NOT, "K-Vib is there after 54, 1.12 times as fast"),
        (0.6, NOT, "K-Vib gets there with 0 of 1 seeds"),
    ],
)
def test_twice_as_fast_is_where_the_best_of_the_others_ends(tmp_path, end, verdict, told):
    fallen(tmp_path, {"K-Vib": end, "uniform": 0.55, "Mabs": 0.9, "Vrb": 0.8, "Avare": 0.7})
    seen = finding(TEXT, tmp_path)
    best = "the best of the others is FedAvg (self-normalised)"
    assert seen.verdict == UNTESTED
    assert seen.reason == f"seen here: {verdict}; {best}; {told}"
    assert "uniform 0.550; Mabs 0.900" in seen.measured


def test_the_papers_samplers_without_ours(tmp_path):
    fallen(tmp_path, {"K-Vib": 0.0}, missing=("recommended", "Forecast"))
    assert finding(TEXT, tmp_path).reason.startswith(f"seen here: {REPRODUCED}; ")
    fallen(tmp_path, {"K-Vib": 0.0}, missing=("Avare",))
    assert finding(TEXT, tmp_path) is None


def test_a_target_where_training_begins_tells_nothing(tmp_path):
    others = ("uniform", "Mabs", "Vrb", "Avare", "FedAvg (self-normalised)")
    fallen(tmp_path, dict.fromkeys(others, 1.0) | {"K-Vib": 0.5})
    assert finding(TEXT, tmp_path) is None


def test_our_own_samplers_against_the_best_of_the_papers(tmp_path):
    for tail, end in ((1, 0.45), (2, 0.6), (3, 0.0)):
        ours = dict.fromkeys(("by size", "Forecast", "recommended"), end)
        fallen(tmp_path, {"K-Vib": 0.5, **ours}, tail=tail)
    seen = finding("(when by size and our own samplers", tmp_path)
    assert seen.verdict == "faster with σ = 3"
    assert "σ = 1, uniform after 60: by size 55; Forecast 55; recommended 55" in seen.measured
    assert "σ = 2, uniform after 60: by size reached by 0 of 1 seeds" in seen.measured
    assert "σ = 3, uniform after 60: by size 30; Forecast 30; recommended 30" in seen.measured


MARGINAL, GROWS = "improve on uniform a little", "K-Vib's gain grows with the differences"
CONDITIONS = "one learning rate for all, 0.002, uniform's best with σ = 2; one seed"


def test_gains_are_of_the_last_three_measurements(tmp_path):
    """A spike at uniform's end is a third of what it is compared with."""
    for tail in (1, 2, 3):
        fallen(tmp_path, {"K-Vib": 0.5}, tail=tail, spike=0.6)
    seen = {words: finding(words, tmp_path) for words in (MARGINAL, GROWS)}
    ratio = f"{(0.5 + 7 / 12 + 8 / 12) / (0.6 + 7 / 12 + 8 / 12):.2f}"
    assert ratio == "0.95"
    assert {found.verdict for found in seen.values()} == {UNTESTED}
    told = "mean of the last 3 training losses over uniform's"
    assert f"{told}: σ = 1: {ratio}; σ = 2: {ratio}; σ = 3: {ratio}" == seen[GROWS].measured
    assert f"{told}, text-agnews-1: Mabs {ratio}; Vrb {ratio}" in seen[MARGINAL].measured
    # 0.83 of the last one alone
    assert seen[MARGINAL].reason == f"seen here: {REPRODUCED}; {CONDITIONS}"
    assert seen[GROWS].reason == f"seen here: {NOT}; {CONDITIONS}"


@pytest.mark.parametrize(
    ("uniform", "verdict", "reason"),
    [
        (0.9, REPRODUCED, CONDITIONS),
        (1.0, PARTLY, f"{CONDITIONS}; with σ = 3 uniform stays at chance, no lower than it began"),
        (1.2, PARTLY, f"{CONDITIONS}; with σ = 3 uniform stays at chance, no lower than it began"),
    ],
)
def test_uniform_at_chance_is_said_and_is_no_gain(tmp_path, uniform, verdict, reason):
    for tail, end in ((1, 0.5), (2, 0.45), (3, 0.4)):
        fallen(tmp_path, {"K-Vib": end, "uniform": uniform if tail == 3 else 0.5}, tail=tail)
    for words, seen in ((GROWS, verdict), (MARGINAL, PARTLY)):
        found = finding(words, tmp_path)
        assert found.verdict == UNTESTED
        assert found.reason == f"seen here: {seen}; {reason}"


def test_the_page_says_what_is_other_than_published(everything):
    """Of every text experiment: model, data, learning rate, batch and rounds, here and there."""
    text = page(everything)
    for name, played, published in (
        ("agnews", "η = 0.002, batch 16, 60 rounds", "DistilBERT of 67 M parameters"),
        ("newswire", "η = 0.1, batch 32, 80 rounds", "708,241 articles"),
    ):
        [line] = [line for line in text.splitlines() if played in line and "As published" in line]
        assert f"{published}" in line.split("As published: ")[1]
        assert "η = 1e-4, batch 16, 300 rounds" in line
        assert text.count(UNTESTED) >= 6
        sizes = tables.load_about(everything / f"text-{name}-1", "sizes")["sizes"]
        assert f"{sum(sizes):,} " in line


def test_the_figure_of_text_sizes_is_that_of_the_results(everything):
    """500, 50, 5 and 97 clients with one sample."""
    drawing = figures.FIGURES["text-data"]
    given = [drawing.read(everything / need) for need in drawing.needs]
    given[5].about["sizes"] = [1] * 40
    figure = drawing.draw(given)
    said = [[t.get_text() for t in axis.get_legend().get_texts()] for axis in figure.axes]
    assert said[0] == [f"σ = {sigma}: the largest 10 have 86%" for sigma in (1, 2, 3)]
    assert said[1] == [*said[0][:2], "σ = 3: the largest 4 have 10%"]
    assert [len(line.get_xdata()) for line in figure.axes[1].lines] == [100, 100, 40]


def test_own_learning_rates(tmp_path):
    given = read(ROOT / "experiments/pilots/text-rates-agnews.toml")
    rows = plausible(given)
    rate = given.local.learning_rates
    ends = {("uniform", rate[0]): 0.5, ("K-Vib", rate[1]): 0.0}  # others stay where they were
    t, parts = np.arange(0, 31, 5), []
    for run in given.runs():
        end = ends.get((run.sampler.label, run.learning_rate), 1.0)
        own = (pl.col("label") == run.sampler.label, pl.col("learning_rate") == run.learning_rate)
        parts.append(
            rows.filter(*own)
            .head(len(t))
            .with_columns(
                pl.Series("round", t, pl.Int32), pl.Series("loss", 1 - (1 - end) * t / 30)
            )
        )
    made(tmp_path, given, pl.concat(parts))
    seen = finding("own best learning rate, few rounds", tmp_path)
    assert seen.verdict == UNTESTED
    assert seen.reason.startswith(f"seen here: {REPRODUCED}; ")
    assert seen.reason.endswith(f"with η = {rate[1]:g} K-Vib is there after 15, 2.00 times as fast")


def test_a_measure_that_was_not_taken(tmp_path):
    given = read(ROOT / "experiments/synthetic.toml")
    made(tmp_path, given, plausible(given).drop("regret"))
    assert finding("lowest regret", tmp_path) is None
    assert finding("lowest variance", tmp_path) is not None


def test_a_sampler_that_diverged_early(tmp_path):
    """Its sums are over few rounds; that does not make them the lowest."""
    given = read(ROOT / "experiments/synthetic.toml")
    ours = pl.col("label") == claims.PUBLISHED
    table = plausible(given).with_columns(
        pl.when(ours).then(0.01).otherwise("regret").alias("regret")
    )
    gone = (pl.col("label") == "Mabs") & (pl.col("round") > 5)
    made(tmp_path, given, table.filter(~gone), diverged=("Mabs",))
    found = finding("lowest regret", tmp_path)
    assert "Mabs finished by 0 of 5 seeds" in found.measured
    assert "nan" not in found.measured + found.reason
    assert found.verdict == REPRODUCED


def test_we_diverged(tmp_path):
    given = read(ROOT / "experiments/synthetic.toml")
    gone = (pl.col("label") == claims.PUBLISHED) & (pl.col("round") > 5) & (pl.col("seed") == 2)
    made(tmp_path, given, plausible(given).filter(~gone), diverged=(claims.PUBLISHED,))
    found = finding("lowest regret", tmp_path)
    assert "K-Vib (the paper's G = 0.01) finished by 4 of 5 seeds" in found.measured
    assert "nan" not in found.measured + found.reason
    assert found.verdict == NOT


def falling(given, numbers):
    """Regret, variance and training loss of one number per sampler, in every measured round."""
    table = plausible(given)
    own = pl.col("label").replace_strict(numbers, default=10.0, return_dtype=pl.Float32)
    return table.with_columns(own.alias(c) for c in ("regret", "variance", "train_loss"))


@pytest.mark.parametrize(
    ("papers", "ours", "verdicts"),
    [(1.0, 20.0, (REPRODUCED, NOT)), (20.0, 1.0, (NOT, REPRODUCED))],
)
def test_the_papers_own_setting_is_judged_and_ours_is_shown(tmp_path, papers, ours, verdicts):
    """K-Vib with G = 0.01 beside K-Vib with G of its first round."""
    given = read(ROOT / "experiments/synthetic.toml", ("exact_every=5",))
    made(tmp_path, given, falling(given, {claims.PUBLISHED: papers, "K-Vib": ours}))
    T = given.rounds
    for words in ("lowest regret", "lowest variance"):
        found = finding(words, tmp_path)
        assert found.verdict == verdicts[0]
        assert found.reason.endswith(f"which Vrb and Mabs have too: {verdicts[1]}")
        said = f"K-Vib (the paper's G = 0.01) {T * papers:.3g} ± 0"
        assert f"{said}; K-Vib (G of its first round) {T * ours:.3g} ± 0" in found.measured
    assert finding("faster convergence", tmp_path).verdict == verdicts[0]


def test_a_cumulative_regret_is_of_all_rounds(tmp_path):
    """Regret 1 in every round is 500 in 500 rounds, however often it was measured."""
    given = read(ROOT / "experiments/synthetic-gamma.toml")
    assert given.exact_every == 5
    made(tmp_path, given, falling(given, {s.label: 1.0 for s in given.samplers}))
    found = tables.load(tmp_path / given.name)
    assert seeds.total(found, "γ = 1.0", "regret").tolist() == [100] * 5
    assert seeds.cumulative(found, "γ = 1.0", "regret").tolist() == [500] * 5
    assert seeds.cumulative(found, "γ = 1.0", "regret", since=250).tolist() == [250] * 5
    titles, [first, *_] = summary.summary(found)
    assert dict(zip(titles, first, strict=True))["total regret"] == "500 ± 0"
    said = finding("not sensitive to γ", tmp_path).measured
    assert said.startswith("cumulative dynamic regret over T = 500 (exact every 5 rounds, times 5)")
    assert "γ = 1e-8 500 ± 0" in said
    for figure in (plots.gamma([found]), plots.online([found]), lab_plots.everything(found)):
        [regret] = [axis for axis in figure.axes if "cumulative" in axis.get_ylabel()]
        assert "(exact every 5 rounds, times 5)" in regret.get_ylabel()
        assert regret.lines[0].get_ydata()[-1] == pytest.approx(500)


@pytest.mark.parametrize(
    ("regrets", "verdict"),
    [
        ((1.0, 1.1, 1.2, 1.3, 1.4), REPRODUCED),
        ((50.0, 3.0, 1.0, 1.1, 3.0), PARTLY),
        ((5e9, 3.0, 1.0, 1.1, 9e9), PARTLY),  # however far the tried γ reach
        ((1.0, 1.0, 1.0, 2.0, 2.0), NOT),
    ],
)
def test_sensitivity_is_judged_next_to_the_papers_own_gamma(tmp_path, regrets, verdict):
    """0.0033 lies between γ = 1e-4 and 1e-2."""
    given = read(ROOT / "experiments/synthetic-gamma.toml")
    numbers = {s.label: r for s, r in zip(given.samplers, regrets, strict=True)}
    made(tmp_path, given, falling(given, numbers))
    found = finding("not sensitive to γ", tmp_path)
    assert found.verdict == verdict
    near = max(regrets[2:4]) / min(regrets[2:4])
    assert f"largest over smallest {near:.2f} from γ = 0.0001 to 0.01, " in found.measured
    assert "its own, of G = 0.01, is 0.0033" in found.reason


def test_a_gamma_that_diverged(tmp_path):
    given = read(ROOT / "experiments/synthetic-gamma.toml")
    gone = (pl.col("label") == "γ = 1e-8") & (pl.col("round") > 5)
    numbers = {s.label: 1.0 for s in given.samplers}
    made(tmp_path, given, falling(given, numbers).filter(~gone))
    found = finding("not sensitive to γ", tmp_path)
    assert found.verdict == PARTLY
    assert "inf from γ = 1e-08 to 1" in found.measured


def test_a_budget_that_diverged(tmp_path):
    given = read(ROOT / "experiments/synthetic-budgets.toml")
    gone = (pl.col("budget") == 5) & (pl.col("round") > 5)
    made(tmp_path, given, plausible(given).filter(~gone))
    for words in ("regret falls with K", "regret of baselines"):
        found = finding(words, tmp_path)
        assert "nan" not in found.measured + found.reason


def test_short_runs_are_judged_without_a_warning(tmp_path):
    """`reproduce --quick`, then `report`: all rounds are early."""
    given = read(ROOT / "experiments/synthetic.toml", ("rounds=50",))
    made(tmp_path, given, plausible(given))
    text = page(tmp_path)
    assert "nan" not in text
    assert "T = 500" not in text


def test_results_that_do_not_list_missing_runs(tmp_path):
    given = read(ROOT / "experiments/synthetic.toml", ("rounds=50",))
    made(tmp_path, given, plausible(given))
    path = tmp_path / "synthetic.json"
    about = json.loads(path.read_text())
    del about["missing"]
    path.write_text(json.dumps(about))
    assert "Not finished" not in page(tmp_path)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_titles_carry_the_number_of_seeds(everything, name):
    drawing = figures.FIGURES[name]
    figure = drawing.draw([drawing.read(everything / need) for need in drawing.needs])
    title = figure.get_suptitle()
    if name.endswith("-data") or not drawing.needs:  # of data and of vectors: nothing was seeded
        assert title == ""
        return
    if name in ("beyond-procedures", "beyond-femnist"):
        assert title.endswith("\none seed")
        return
    if name == "stragglers":
        assert "mean of 5 seeds, interval of 95 %" in title
        return
    [need] = drawing.needs
    given = find(need, ROOT / "experiments")
    counts = sorted({len(s.seeds or given.seeds) for s in given.samplers})
    many = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    told = "one seed" if counts == [1] else f"mean ± standard deviation of {many}"
    assert title == f"{given.title}\n{told}"
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {sampler.label for sampler in given.samplers}


def test_the_same_results_give_the_same_files(everything, tmp_path):
    formats = ("png", "pdf", "svg")
    for folder in "ab":
        paths = figures.draw("synthetic-gamma", everything, tmp_path / folder, formats)
        assert [path.name for path in paths] == [f"synthetic-gamma.{end}" for end in formats]
    for end in formats:
        a, b = (tmp_path / folder / f"synthetic-gamma.{end}" for folder in "ab")
        assert a.read_bytes() == b.read_bytes(), end


@pytest.mark.parametrize(
    ("name", "column"),
    [("synthetic", "regret"), ("synthetic-budgets", "variance"), ("femnist-rates", "accuracy")],
)
def test_figures_without_their_columns(tmp_path, name, column):
    """Results of an experiment that never measured what the figure shows."""
    given = find(name, ROOT / "experiments")
    made(tmp_path, given, plausible(given).drop(column))
    with pytest.raises(ValueError, match=f"the results of {name} hold no {column}; set .*_every"):
        figures.draw(name, tmp_path, tmp_path, ("png",))


@pytest.mark.parametrize("name", ["synthetic", "synthetic-budgets", "femnist-rates"])
def test_figures_of_a_part(tmp_path, name):
    """A sampler that was not played yet is left out, and does not spoil the others' figure."""
    given = find(name, ROOT / "experiments")
    made(tmp_path, given, plausible(given).filter(pl.col("label") != "K-Vib"))
    [path] = figures.draw(name, tmp_path, tmp_path, ("png",))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("name", ["femnist-v1", "synthetic", "beyond-equal"])
def test_bands_of_real_figures_stay_on_their_axes(everything, name):
    """An axis gets its scale before its bands."""
    drawing = figures.FIGURES[name]
    [need] = drawing.needs
    found = drawing.read(everything / need)
    wild = pl.when(pl.col("seed") == 0).then(9.0).otherwise(1.0)
    columns = [c for c in ("train_loss", "variance", "regret") if c in found.table.columns]
    table = found.table.with_columns(pl.col(c) * wild for c in columns)
    figure = drawing.draw([Results(table, found.about)])
    for axis in figure.axes:
        if axis.get_yscale() == "log":
            lows = [p.vertices[:, 1].min() for c in axis.collections for p in c.get_paths()]
            assert min(lows) > 0


def test_the_best_learning_rate(tmp_path):
    given = find("femnist-rates", ROOT / "experiments")
    accuracy = pl.when(pl.col("learning_rate") == 0.05).then(0.9).otherwise(0.5)
    late = pl.when(pl.col("round") < 190).then(0.99).otherwise(accuracy)
    table = plausible(given).with_columns(late.cast(pl.Float32).alias("accuracy"))
    found = Results(table, {"experiment": asdict(given)})
    assert rates.best_rate(found) == {sampler.label: 0.05 for sampler in given.samplers}
    own = rates.at_best_rates(found).table
    assert own["learning_rate"].unique().to_list() == [0.05]
    assert len(own) == len(table) / len(given.local.learning_rates)


def test_the_lowest():
    ours, above = np.array([1.0, 2.0]), np.array([1.5, 2.5])
    assert lowest({"x": ours, "y": above}, "x") == REPRODUCED
    assert lowest({"x": ours, "y": np.array([9.0, 1.9])}, "x") == PARTLY
    assert lowest({"x": above, "y": ours}, "x") == NOT
    assert lowest({"x": ours, "y": above, "z": ours / 2}, "x") == NOT
    assert lowest({"x": ours, "y": ours}, "x") == NOT  # nobody wins a tie
    never = np.array([np.inf, np.inf])
    assert lowest({"x": ours, "y": never}, "x") == REPRODUCED
    assert lowest({"x": never, "y": never}, "x") == NOT
    assert lowest({"x": ours[:0], "y": ours[:0]}, "x") == NOT  # nobody ran
    assert lowest({"x": ours, "y": ours[:0]}, "x") == NOT


def test_words_for_several_samplers():
    several = {"x": np.array([1.0, 3.0]), "y": np.array([2.0, 2.0])}
    assert comparing.listed(several, ".1f") == "x 2.0 ± 1.4; y 2.0 ± 0.0"
    assert comparing.count(several) == "2 seeds"
    assert comparing.count({"x": np.ones(1)}) == "one seed"
    near, far = np.array([0.9, 1.0, 1.2]), np.array([2.0, 2.01, 2.02])
    assert comparing.within([near, near]) != ""
    assert comparing.within([near, far]) == comparing.within([near[:1]]) == ""


def test_slopes():
    columns = ["label", "budget", "seed", "round", "regret"]
    rows = [
        ("a", K, seed, t, own * K**-1.5)
        for K in (50.0, 5.0, 10.0)
        for seed, own in ((0, 1.0), (1, 3.0))
        for t in range(4)
    ]
    mean, exponent = claims.slope(results(rows, columns), "a")
    assert mean == pytest.approx([2 * K**-1.5 for K in (5, 10, 50)])  # in the order of K
    assert exponent == pytest.approx(-1.5)
    below = [(*row[:4], -row[4]) if row[1] == 50 else row for row in rows]
    mean, exponent = claims.slope(results(below, columns), "a")
    assert mean[2] < 0
    assert np.isnan(exponent)  # there is no power of K to fit
    with pytest.raises(MissingResultsError, match="fewer than two budgets"):
        claims.slope(results([row for row in rows if row[1] == 5], columns), "a")


# Examples 1 and 2


def test_every_outcome_of_example_2():
    for budget in (2, 3):
        full, outcomes = toy.example_2(budget)
        for name in ("independent (ISP)", "random (RSP)"):
            rows = [o for o in outcomes if o.procedure == name]
            assert sum(o.probability for o in rows) == pytest.approx(1)
            assert sum(o.probability * o.estimate for o in rows) == pytest.approx(full)
    alone = [o for o in toy.example_2(3)[1] if o.procedure == "independent (ISP)"]
    assert [o.counts for o in alone] == [(1, 1, 1)]


def test_errors_of_example_1_have_their_exact_mean():
    """Six means at 5.5 standard errors: a false alarm in 4 million."""
    rows = toy.example_1(seed=1, clients=40, dimensions=30, draws=400)
    assert [(row.budget, row.name) for row in rows] == [
        (K, name) for K in (10, 30) for name in toy.COLOURS
    ]
    for row in rows:
        error = row.squared.std(ddof=1) / np.sqrt(len(row.squared))
        assert abs(row.squared.mean() - row.exact) < 5.5 * error


# The README


def test_rounds_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| (\d+ ± \d+) \|$", readme, re.MULTILINE)
    assert len(rows) > 5
    best = rates.at_best_rates(paired(RESULTS / "femnist-rates"))
    for label, said in rows:
        first = seeds.rounds_to(best, label, "accuracy", rates.TARGET)
        assert said == seeds.spread(first, ".0f"), label
