"""Numbers in the README are those of the committed result files."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_speed_in_the_readme():
    results = json.loads((ROOT / "benchmarks/results/core.json").read_text())["results"]
    sort, authors, *_ = results.values()
    readme = (ROOT / "README.md").read_text()
    assert f"at most {max(row['waterfill / sort'] for row in sort):.1f} times `np.sort`" in readme
    assert f"was {authors[0]['times faster']:,.0f} times faster" in readme
    [rounds, *_] = json.loads((ROOT / "benchmarks/results/scale.json").read_text())[
        "results"
    ].values()
    by_size = {row["clients"]: row for row in rounds if row["sampler"] == "K-Vib"}
    few, many = (f"{by_size[N]['round ms']:.2f} ms among {N}" for N in ("10^5", "10^8"))
    assert f"took {few} clients and {many}" in readme
    assert f"{by_size['10^8']['bytes per client']:.0f} bytes per client" in readme
    assert f"{by_size['10^8']['all coins / round']:,.0f} times less" in readme


def test_simulators_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    peers = json.loads((ROOT / "benchmarks/results/peers.json").read_text())["results"]
    ratios = [
        r["kvib / fastest peer"]
        for rows in peers.values()
        for r in rows
        if "kvib / fastest peer" in r
    ]
    synthetic, cnn = ratios
    assert f"{synthetic:.1f} times the fastest peer on Synthetic, {cnn:.2f} times on the" in readme
    gpu = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())["results"]
    faster = {row["engine"]: row["plain loop / this, round s"] for row in gpu}
    tf32 = faster["kvib, batched, tf32"]
    assert f"{tf32:.1f} times faster than one after another in tf32" in readme
