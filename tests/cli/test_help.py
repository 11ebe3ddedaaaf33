"""Every command, argument and option of `kvib` has a help text of full phrases."""

import re

import pytest

pytest.importorskip("typer")

import typer

from kvib.cli.commands import app
from test_words import BANNED


def walk(command, path):
    """(name, help text) of a command, its parameters and its subcommands."""
    yield path, command.help
    for parameter in command.params:
        name = parameter.opts[0] if parameter.opts else parameter.name
        yield f"{path} {name}", getattr(parameter, "help", None)
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{path} {name}")


HELP = dict(walk(typer.main.get_command(app), "kvib"))


def test_the_tree_was_walked():
    commands = {name.split()[1] for name in HELP if re.fullmatch(r"kvib \w+", name)}
    lab, journal = {"run", "figure", "list"}, {"journal", "replay", "plan"}
    assert commands == {"prepare", "simulate"} | lab | journal
    assert {"kvib --version", "kvib run file", "kvib simulate --chunk-bytes"} <= set(HELP)


@pytest.mark.parametrize("name", HELP)
def test_help_is_a_full_phrase(name):
    """No text is missing, and each begins with a capital letter and ends with a full stop."""
    text = HELP[name]
    assert text, "there is no help text"
    assert text.strip().endswith("."), text
    assert re.match(r"[A-Z]", text), text
    assert not text.startswith("Of "), "name the noun that is meant"


@pytest.mark.parametrize("name", HELP)
def test_no_line_breaks_within_a_sentence(name):
    """Terminals wrap lines: a break of the source would show in the middle of a line."""
    assert all(line.endswith(".") for line in HELP[name].split("\n") if line), HELP[name]


@pytest.mark.parametrize("name", HELP)
def test_help_has_no_banned_word(name):
    found = [
        better
        for pattern, better in BANNED.items()
        if re.search(pattern, HELP[name], re.M | (0 if "Of" in pattern else re.I))
    ]
    assert not found, f"{HELP[name]!r}: {found}"
