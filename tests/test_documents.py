"""README and docs name what there is: every name, every command, every file that is looked for."""

import re
from pathlib import Path

import pytest

import kvib
from kvib import names
from kvib.sim.text import corpora, tokens

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


LISTED = dict.fromkeys(names.POLICIES, "policies.catalogue")
LISTED |= dict.fromkeys(names.PROCEDURES, "procedures.catalogue")


@pytest.mark.parametrize("name", kvib.__all__)
def test_every_name_is_in_the_reference(name):
    """On its own, or by the list that it is on."""
    entry = LISTED.get(name, name)
    assert re.search(rf"^::: kvib\..*\b{entry}\b", page("reference.md"), re.MULTILINE)


def test_every_command_is_on_its_page():
    typer = pytest.importorskip("typer")
    from kvib.cli.commands import app

    sections = dict(
        re.findall(r"^## kvib (\w+)\n(.*?)(?=^## |\Z)", page("cli.md"), re.MULTILINE | re.DOTALL)
    )
    commands = typer.main.get_command(app).commands
    assert set(sections) == set(commands)
    for name, command in commands.items():
        for option in command.params:
            if option.param_type_name == "option":
                assert option.opts[0] in sections[name], (name, option.opts[0])


def test_every_file_of_text_is_in_the_table():
    """With the model whose tokenizer it is."""
    table = dict(re.findall(r"^\| `(\w+\.[\w.]+)` \| (.*) \|$", page("text.md"), re.MULTILINE))
    files = {corpora.AG_NEWS, corpora.REUTERS, corpora.SHAKESPEARE}
    assert table.keys() == files | {file for file, *_ in tokens.LOCAL.values()}
    for file, _, model in tokens.LOCAL.values():
        assert f"`{model}`" in table[file]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "experiments/README.md"])
def test_links_of_pages_outside_the_site(name):
    """Those of the site are checked when it is built."""
    path = ROOT / name
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link
