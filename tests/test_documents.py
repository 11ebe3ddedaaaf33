"""Numbers in the README are those of the committed result files."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_speed_in_the_readme():
    results = json.loads((ROOT / "benchmarks/results/core.json").read_text())["results"]
    sort, authors, rounds, _ = results.values()
    readme = (ROOT / "README.md").read_text()
    assert f"at most {max(row['waterfill / sort'] for row in sort):.1f} times `np.sort`" in readme
    assert f"was {authors[0]['times faster']:,.0f} times faster" in readme
    assert f"took {rounds[-1]['round ms']:.0f} ms for a million clients" in readme
