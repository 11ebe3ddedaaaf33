"""The pages of docs/extending do what they say, in a fresh clone.

On such a page a python block that begins with a comment of a path is a file to write; a diff block
that begins so adds lines to a file; the lines of a sh block are run at the root of the clone.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "extending").glob("*.md"))
OWN = {"policy": r"class (\w+)\(Policy\[", "procedure": r"(\w+) = Procedure\("}
"""What a page makes: its name is written in the first file, and once more where it is listed."""

pytestmark = pytest.mark.slow


def git(folder, *command):
    name = ("-c", "user.name=kvib", "-c", "user.email=kvib@localhost")
    done = subprocess.run(
        ["git", "-C", folder, *name, *command], capture_output=True, text=True, check=True
    )
    return done.stdout


def cloned(folder):
    """A fresh clone of the working tree, files that are not committed included."""
    git(ROOT, "clone", "-q", ROOT, folder)
    for name in git(ROOT, "ls-files", "-zmo", "--exclude-standard").split("\0")[:-1]:
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "as it is", "--allow-empty", "--no-verify")
    return folder


def blocks(text):
    """(language, path or None, lines) of every block."""
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = body.splitlines()
        path = re.fullmatch(r"# ([\w.-]+(?:/[\w.-]+)+)", lines[0])
        yield language, path and path[1], lines[1:] if path else lines


def added(text, lines):
    """A file after a diff whose lines are context or new; the context is found once."""
    assert {line[:1] for line in lines} <= {" ", "+"}
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] == " ")
    new = "".join(f"{line[1:]}\n" for line in lines)
    assert text.count(old) == 1, f"the context is not found once:\n{old}"
    return text.replace(old, new)


def written(clone, text):
    """Make all changes of a page; the paths, in their order."""
    paths = []
    for language, path, lines in blocks(text):
        if path is None:
            continue
        target = clone / path
        if language == "diff":
            target.write_text(added(target.read_text(encoding="utf-8"), lines), encoding="utf-8")
        else:
            assert not target.exists(), f"{path} is there already"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def run(clone, command):
    """In the clone, with this interpreter."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env["PYTHONPATH"] = str(clone / "src")
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    done = subprocess.run(
        ["sh", "-e", "-c", command], cwd=clone, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"


def mentions(clone, name, own):
    """New lines with this name outside of its own file."""
    git(clone, "add", "-A")
    lines = git(clone, "diff", "--cached", "-U0", "HEAD", "--", ".", f":!{own}").splitlines()
    new = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    return [line for line in new if re.search(rf"\b{name}\b", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to clone")
    text = page.read_text(encoding="utf-8")
    clone = cloned(tmp_path / "kvib")
    paths = written(clone, text)
    if page.stem in OWN:
        assert len(set(paths)) <= 4
        name = re.search(OWN[page.stem], (clone / paths[0]).read_text(encoding="utf-8"))[1]
        assert len(mentions(clone, name, paths[0])) == 1
    commands = [lines for language, _, lines in blocks(text) if language == "sh"]
    assert commands
    for lines in commands:
        run(clone, "\n".join(lines))


def test_pages_are_short():
    """Ten lines of prose beside code and tables."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        prose = [line for line in text.splitlines() if line and line[0] not in "#|"]
        assert len(prose) <= 12, page


def test_there_are_pages():
    assert {"policy", "procedure"} <= {page.stem for page in PAGES}
