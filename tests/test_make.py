"""`make docs` fails where the documentation is broken; `make test` and `make test-all` run every
test once."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


@pytest.fixture
def tree(tmp_path):
    """What `make docs` reads, with this environment as its .venv."""
    for name in ("Makefile", "mkdocs.yml", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("benchmarks", "docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "mkdocs"):
        script = tmp_path / ".venv/bin" / name
        script.write_text(f'#!/bin/sh\nexec {BIN / name} "$@"\n')
        script.chmod(0o755)
    (tmp_path / ".venv/.dev").touch()
    return tmp_path


def make(target, folder):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(["make", target], cwd=folder, check=False, **how)


def test_the_site_is_built_and_examples_are_code(tree):
    done = make("docs", tree)
    assert done.returncode == 0, done.stdout
    assert len(done.stdout.splitlines()) < 8
    pages = [path.read_text(encoding="utf-8") for path in (tree / "site").rglob("*.html")]
    assert sum("&gt;&gt;&gt;" in page for page in pages) > 1
    for page in pages:
        outside = re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
        assert "&gt;&gt;&gt;" not in outside


GUIDE, REFERENCE, COHORT = "docs/guide.md", "docs/reference.md", "src/kvib/cohort.py"
DEFECTS = {
    "a link": (GUIDE, "[x](nowhere.md)"),
    "an image": (GUIDE, "![x](figures/nowhere.png)"),
    "a link without an ending": (GUIDE, "[x](nowhere)"),
    "a link from the root": (GUIDE, "[x](/nowhere.md)"),
    "an anchor": (GUIDE, "[x](choosing.md#nowhere)"),
    "an anchor of the page itself": (GUIDE, "[x](#nowhere)"),
    "a reference": (GUIDE, "[x][kvib.nowhere]"),
    "a name in the reference": (REFERENCE, "::: kvib.nowhere"),
    "a reference in a docstring": (COHORT, "[x][kvib.nowhere]"),
    "a link in a docstring": (COHORT, "[x](nowhere.md)"),
    "a page that is in no menu": ("docs/nowhere.md", "# Lost"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_make_docs_fails(tree, defect):
    file, text = DEFECTS[defect]
    path = tree / file
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    if path.suffix == ".py":
        head, summary, tail = content.partition('    """A cohort holds the clients')
        assert tail
        path.write_text(f"{head}{summary} {text}{tail}", encoding="utf-8")
    else:
        path.write_text(f"{content}\n\n{text}\n", encoding="utf-8")
    done = make("docs", tree)
    assert done.returncode != 0
    assert "nowhere" in done.stdout


MARKED = """
import pathlib, pytest

@pytest.fixture(autouse=True)
def seen(request):
    with open(pathlib.Path(__file__).with_name("seen"), "a") as file:
        file.write(request.node.name + " ")

def test_plain(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.timing
def test_timing(): pass

@pytest.mark.slow
@pytest.mark.timing
def test_both(): pass
"""


@pytest.mark.slow
def test_every_test_is_run_once(tree):
    """A suite of four, by the real commands."""
    for name in ("src", "docs"):
        shutil.rmtree(tree / name)
    (tree / "tests").mkdir()
    (tree / "tests/test_marked.py").write_text(MARKED)
    for target, names in {
        "test": ["test_plain"],
        "test-all": ["test_both", "test_slow", "test_timing"],
    }.items():
        done = make(target, tree)
        assert done.returncode == 0, done.stdout
        seen = tree / "tests/seen"
        assert sorted(seen.read_text().split()) == names
        seen.unlink()
