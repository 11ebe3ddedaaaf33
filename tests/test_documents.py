"""What README and docs say is so: numbers of committed result files, every name, every command."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

import kvib
from kvib.lab import tables
from kvib.sim.text import corpora, tail_sizes, tokens
from kvib.sim.text.tasks import TAIL_SEED

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def results(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["results"]


def test_speed_in_the_readme():
    sort, *_ = results("core").values()
    assert f"at most {max(row['waterfill / sort'] for row in sort):.1f} times `np.sort`" in README
    rounds, *_ = results("scale").values()
    by_size = {row["clients"]: row for row in rounds if row["sampler"] == "K-Vib"}
    few, many = (f"{by_size[N]['round ms']:.2f} ms among {N}" for N in ("10^5", "10^8"))
    assert f"took {few} clients and {many}" in README
    assert f"{by_size['10^8']['bytes per client']:.0f} bytes per client" in README
    rows = [row for part in results("peers").values() for row in part]
    synthetic, cnn = (r["kvib / fastest peer"] for r in rows if "kvib / fastest peer" in r)
    assert f"{synthetic:.1f} times the fastest peer on Synthetic, {cnn:.2f} times on the" in README


def test_speed_of_language_models():
    text = results("text")
    share = {row["batch"]: row for row in text["next token"] if row["way"] == "kvib, bf16"}
    few, many = (f"{share[batch]['share of the bf16 rate'] * 100:.0f} %" for batch in (16, 64))
    assert f"With 64 blocks a step Pythia-70M trains at {many}" in PAGES["speed.md"]
    assert f"with 16 at {few}" in PAGES["speed.md"]
    tokens = f"{share[64]['tokens/s'] / 1000:.0f},000 tokens/s"
    assert f"at {tokens} with batches of 64 blocks, {many} of the rate" in PAGES["text.md"]
    together = text["classifier"][-1]
    assert together["way"] == "kvib, batched, bf16"
    assert f"{together['plain loop in float32 / this']:.0f} times as fast" in PAGES["text.md"]
    # what was asked for
    assert share[64]["share of the bf16 rate"] >= 0.2
    assert together["plain loop in float32 / this"] >= 5


def test_language_models_in_a_long_tail():
    """Rounds are those of the claims, seconds and adapters those of the result files."""
    rows = [row for row in PAGES["reproduction.md"].splitlines() if "when our own samplers" in row]
    found = [re.findall(r"σ = (\d), (\S+) after (\d+): Forecast (\w+).*?; recommended (\w+)", row)
             for row in rows]  # fmt: skip
    (_, _, news), (one, two, news_wire) = found
    assert [best for _, best, *_ in found[0]] == [best for _, best, *_ in found[1]]
    assert [best for _, best, *_ in found[0]] == ["K-Vib", "K-Vib", "Vrb"]
    assert [ours for *_, ours, _ in found[0][:2]] == ["reached", "reached"]  # by 0 of 1 seeds
    assert "reached by 1" not in rows[0]
    text = PAGES["text.md"]
    assert f"| AG News, of {news[2]} | newswire, of {news_wire[2]} |" in text
    assert f"| σ = 1 | never | {one[3]} with Forecast, {one[4]} with recommended |" in text
    assert f"| σ = 2 | never | {two[3]}, {two[4]} |" in text
    assert f"| σ = 3 | {news[3]}, {news[4]} | {news_wire[3]}, {news_wire[4]} |" in text
    for page in (README, PAGES["choosing.md"]):
        assert f"after {news[3]} rounds" in page
        assert f"ends after {news[2]} on AG News, after {news_wire[3]} of {news_wire[2]} in" in page
    runs = tables.load(ROOT / "results/text-agnews-3").about["runs"]
    forecast, vrb, kvib = (
        f"{runs[f'{name}_K25_lr0.002_seed0']['seconds']:.0f} s"
        for name in ("forecast", "vrb", "k-vib")
    )
    told = f"{forecast} of the H200 with Forecast, {vrb} with Vrb, {kvib} with K-Vib"
    assert told in text


def text_results(task):
    """What is told of the three tails."""
    return [tables.load_about(ROOT / f"results/text-{task}-{tail}") for tail in (1, 2, 3)]


def share(sizes, clients):
    """Of the largest, in percent."""
    return f"{sum(sorted(sizes)[-clients:]) / sum(sizes) * 100:.0f}"


def enumerated(values):
    """a, b and c."""
    *first, last = values
    return f"{', '.join(first)} and {last}"


def test_sizes_of_the_long_tails():
    text = PAGES["text.md"]
    tenths = {}
    for task in ("agnews", "newswire"):
        sizes = [about["sizes"] for about in text_results(task)]
        assert {len(own) for own in sizes} == {1000}
        tenths[task] = enumerated(share(own, 100) for own in sizes)
    assert f"hold {tenths['agnews']} % of 20,000 documents, {tenths['newswire']} % of 12" in text
    one, two, three = (share(about["sizes"], 1) for about in text_results("agnews"))
    assert f"the largest client holds {one}, {two} or {three} % of all documents" in text
    many = (tail_sizes(10**9, 1000, sigma, TAIL_SEED) for sigma in (1, 2, 3))  # one is nothing
    assert f"it would be {enumerated(share(own, 100) for own in many)} %" in text


def test_where_text_comes_from():
    """Every file that is looked for, and what is taken instead."""
    table = dict(re.findall(r"^\| `(\w+\.[\w.]+)` \| (.*) \|$", PAGES["text.md"], re.M))
    files = {corpora.AG_NEWS, corpora.REUTERS, corpora.SHAKESPEARE}
    assert table.keys() == files | {file for file, *_ in tokens.LOCAL.values()}
    for file, _, model in tokens.LOCAL.values():
        assert f"`{model}`" in table[file]
    assert f"the first {corpora.HUB_DOCUMENTS:,} documents" in table[corpora.REUTERS]
    assert "the hub has no such file" in table[corpora.SHAKESPEARE]


def test_seconds_of_text_on_the_gpu():
    page = (ROOT / "experiments/README.md").read_text()

    def added_up(*names):
        runs = (tables.load_about(ROOT / f"results/text-{name}")["runs"] for name in names)
        return ", ".join(f"{sum(r['seconds'] for r in each.values()):.0f}" for each in runs)

    for what, names in {
        "learning rates": ("rates-agnews", "rates-newswire"),
        "AG News": ("agnews-1", "agnews-2", "agnews-3"),
        "adapters": ("lora-agnews",),
        "newswire": ("newswire-1", "newswire-2", "newswire-3"),
    }.items():
        [said] = re.findall(rf"^\| {what} \| `.*` \| ([\d, ]+)", page, re.MULTILINE)
        assert said.strip() == added_up(*names), what
    seconds = [about["runs"] for about in text_results("newswire")]
    for label in ("Forecast", "recommended"):
        own = (runs[f"{label.lower()}_K25_lr0.1_seed0"]["seconds"] for runs in seconds)
        assert f"| {label} | {' | '.join(f'{s:.0f}' for s in own)} |" in page
    for tail, runs in enumerate(seconds, 1):
        theirs = [r["seconds"] for n, r in runs.items() if n[:8] not in ("forecast", "recommen")]
        assert f"{min(theirs):.0f} to {max(theirs):.0f} s with σ = {tail}" in page


def test_what_a_cluster_costs():
    whole = json.loads((ROOT / "benchmarks/results/cluster.json").read_text())
    about, rows, page = whole["environment"], whole["results"], PAGES["ray.md"]
    here, one, two = (f"{row['round s']:.2f} s" for row in rows)
    assert f"rounds of {one} of one worker, {two} of two ({here} in process" in page
    assert (
        f"{about['parameters']:,} parameters, on two cores (load {about['load before']:.1f}" in page
    )
    one, two = (row["busiest worker, core s"] for row in rows[1:])
    assert f"needed {two:.2f} s of its core instead of {one:.2f}" in page
    few, many = (f"{row['overhead'] * 100:.0f} %" for row in rows[1:])
    assert f"A round took {few} longer than the local training of its slowest worker with" in page
    assert f"one worker, {many} with two" in page
    assert f"efficiency was {rows[2]['efficiency, wall']:.2f} by the wall" in page
    assert max(row["overhead"] for row in rows[1:]) < 0.1  # asked for, with rounds of a second
    assert f"to {rows[2]['error']:.0e}".replace("e-0", "e-") in page


def test_the_load_is_read_before_the_rounds(monkeypatch):
    """Afterwards it is mostly the benchmark's own."""
    pytest.importorskip("ray")
    import cluster

    seen = []
    monkeypatch.setattr(cluster.os, "getloadavg", lambda: seen.append("load") or (0.0, 0.0, 0.0))
    monkeypatch.setattr(cluster, "task", lambda _: seen.append("task") or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cluster.main([])
    assert seen == ["load", "task"]


def test_adapters():
    ends = tables.load(ROOT / "results/text-lora-agnews").table.filter(pl.col("round") == 30)
    for label in ("uniform", "recommended"):
        own = ends.filter(pl.col("label") == label).sort("learning_rate")["loss"]
        assert f"| {label} | {' | '.join(f'{loss:.3f}' for loss in own)} |" in PAGES["text.md"]
    ends = tables.load(ROOT / "results/text-rates-agnews").table.filter(pl.col("round") == 30)
    best = dict(ends.group_by("label").agg(pl.col("loss").min()).iter_rows())
    assert f"uniform {best['uniform']:.3f}, K-Vib {best['K-Vib']:.3f}." in PAGES["text.md"]


def test_results_in_the_readme():
    """They are those of the pages that `kvib report` writes, which other tests compare."""
    table = re.findall(r"^\| ([\w() -]+) \| (\d+ ± \d+) \|$", README, re.MULTILINE)
    assert len(table) == 7
    said = PAGES["reproduction.md"], PAGES["beyond.md"]
    [paper] = re.findall(r"rounds to 95%: (.*?) \(3 seeds\)", said[0])
    [v1, v2, v3] = re.findall(r"rounds to 75 %: (.*?) \(3 seeds\)", said[0])
    ours = re.findall(
        r"everybody at its own best .*?: (\w+) at least .*? \| (.*?) rounds;", said[1]
    )
    assert set(table) <= {*re.findall(r"(\w[\w() -]*) (\d+ ± \d+)", paper), *ours}
    assert all("uniform / K-Vib 1.00" in version for version in (v1, v2, v3))
    assert "| Synthetic(0, 0), K = 10: " in PAGES["choosing.md"]
    assert "(five seeds) | 0.04 |" in PAGES["choosing.md"]


def test_every_page_is_in_the_menu_and_on_the_first_page():
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert f": {page}\n" in menu
        if page != "index.md":
            assert f"({page})" in PAGES["index.md"]
            assert f"(docs/{page})" in README
    for decision in (ROOT / "docs/decisions").glob("*.md"):
        assert f"decisions/{decision.name}" in menu


@pytest.mark.parametrize("name", kvib.__all__)
def test_every_name_is_in_the_reference(name):
    assert re.search(rf"^::: kvib\..*\b{name}\b", PAGES["reference.md"], re.MULTILINE)


def test_every_command_is_on_its_page():
    typer = pytest.importorskip("typer")
    from kvib.cli.commands import app

    page = PAGES["cli.md"]
    sections = dict(re.findall(r"^## kvib (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    commands = typer.main.get_command(app).commands
    assert set(sections) == set(commands)
    for name, command in commands.items():
        for option in command.params:
            if option.param_type_name == "option":
                assert option.opts[0] in sections[name], (name, option.opts[0])


def test_installing_is_said_in_one_way():
    """kvib is not on PyPI: whoever has it has a clone."""
    for page in (README, *PAGES.values()):
        assert not re.search(r"pip install \W?kvib\b", page)
