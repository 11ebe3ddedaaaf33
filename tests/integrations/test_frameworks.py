"""Frameworks whose packages clash with ours: each in an environment of its own, end to end.

The environments are `.venv-pfl`, … beside `.venv`, made on first use; they see our packages, too.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from places import ROOT

pytestmark = pytest.mark.slow
CHECKS = Path(__file__).parent / "frameworks"
INSTALLS = {
    "pfl": (("pfl==0.6.0",),),
    "fedlab": (
        ("pynvml", "pandas", "tqdm", "munch", "scikit-learn", "pillow"),
        ("--no-deps", "fedlab==1.3.0"),  # it asks for torchvision, used for data sets only
    ),
    "nvflare": (("nvflare==2.9.0",),),
    "flower-1.22.0": (("flwr[simulation]==1.22.0",),),
    "flower-1.42.0": (
        ("--no-deps", "flwr==1.42.0"),  # what it needs is what ours needs, in newer versions
    ),
}
FLOWERS = [name.removeprefix("flower-") for name in INSTALLS if name.startswith("flower-")]
"""The oldest and the newest; the version in between that we develop with has all other tests."""


def python(name):
    """The interpreter of a framework's environment."""
    pytest.importorskip("torch")
    folder = ROOT / f".venv-{name}"
    binary, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        [site] = folder.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
        for packages in INSTALLS[name]:
            install = [binary, "-m", "pip", "install", "--quiet", *packages]
            subprocess.run([*install, "-c", ROOT / "constraints.txt"], check=True)
        ready.touch()
    return binary


def check(*command, cwd=None):
    """What a command writes, which must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_pfl_takes_the_estimate_with_one_worker_and_with_two(tmp_path):
    binary = python("pfl")
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    check(binary, CHECKS / "pfl_check.py", one)
    workers = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    check(binary, *workers, CHECKS / "pfl_check.py", two)
    alone, together = (json.loads(path.read_text()) for path in (one, two))
    for ours, theirs in zip(alone, together, strict=True):
        assert [line["ids"] for line in ours] == [line["ids"] for line in theirs]
        assert ours[-1]["model"] == pytest.approx(theirs[-1]["model"], abs=1e-6)
    sizes = {len(line["ids"]) for line in alone[1]}
    assert {0, 1} <= sizes  # nobody, and fewer than workers: the rounds go on
    p = np.array(alone[0][-1]["p"])
    assert p.max() > 3 * p.min()  # it has learned


def test_fedlab_takes_the_estimate(tmp_path):
    check(python("fedlab"), CHECKS / "fedlab_check.py", tmp_path / "said")
    assert (tmp_path / "said").read_text() == "agrees"


@pytest.mark.parametrize("how", [("pivotal",), ("independent", "site-3")])
def test_nvflare_takes_the_estimate(tmp_path, how):
    check(python("nvflare"), CHECKS / "nvflare_check.py", tmp_path, *how)
    assert (tmp_path / "said").read_text() == "agrees"


@pytest.mark.parametrize("version", FLOWERS)
def test_versions_of_flower_in_process(version):
    check(python(f"flower-{version}"), CHECKS / "flower_check.py", version, "tests")


@pytest.mark.parametrize("version", FLOWERS)
def test_versions_of_flower_on_the_simulation_engine(tmp_path, version):
    command = (CHECKS / "flower_check.py", version, "simulation", tmp_path / "run")
    check(python(f"flower-{version}"), *command)


def from_the_page(section, folder):
    """What the script of a section of docs/frameworks.md prints, pasted into a file."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    [part] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    [script] = re.findall(r"^```py\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    (folder / "train.py").write_text(script, encoding="utf-8")
    return check(python(section.lower()), "train.py", cwd=folder)


def test_the_script_for_pfl(tmp_path):
    said = from_the_page("pfl", tmp_path)
    before, after = map(float, re.search(r"loss ([\d.]+) → ([\d.]+)", said).groups())
    assert after < before / 5
    low, high = map(float, re.search(r"p from ([\d.]+) to ([\d.]+)", said).groups())
    assert high > 3 * low  # it has learned


def test_the_script_for_nvflare(tmp_path):
    said = from_the_page("NVFlare", tmp_path)
    norms = re.findall(r"^round \d: drew \['site-\d', 'site-\d'\], norms \[(.*)\]$", said, re.M)
    assert len(norms) == 5, said[-3000:]
    first, last = (np.array(line.split(), float).mean() for line in (norms[0], norms[-1]))
    assert last < 0.7 * first


def test_the_script_for_fedlab(tmp_path):
    said = from_the_page("FedLab", tmp_path)
    losses = [float(loss) for loss in re.findall(r"^round \d0: loss ([\d.]+)$", said, re.M)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] < np.log(2)
