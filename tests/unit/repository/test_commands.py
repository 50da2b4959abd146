"""Every `megalith` command that a page shows exists, with the options that the page gives it."""

import re
import shlex

import click
import pytest

from megalith.cli.app import app
from megalith.cli.train.ctr import train_ctr
from support.pages import ROOT, blocks, pages

_INLINE = re.compile(r"`(megalith [^`]+)`")
_PLACEHOLDER = re.compile(r"^[A-Z]+$|[|]|[.]{3}")  # COMMAND, ls|show, ...


def shown(page):
    """The command lines of a page, from its shell blocks and from `code` in its text."""
    text = (ROOT / page).read_text()
    lines = [
        line
        for block in blocks(text)
        if block.language == "sh"
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    found = [
        match[1] for line in lines if (match := re.match(r"(?:[A-Z_]+=\S+ )*(megalith .*)", line))
    ]
    return found + [" ".join(line.split()) for line in _INLINE.findall(text)]


def options_of(command):
    return {name for parameter in command.params for name in parameter.opts}


def problem_of(line):
    """What is wrong with a command line; empty if nothing is."""
    words = shlex.split(re.split(r"\s[|>&]|\s#", line)[0])[1:]
    command = app
    options = options_of(app) | {"--help", "-h"}
    is_value = False
    for word in words:
        if word.startswith("-"):
            name, has_value, _ = word.partition("=")
            if name not in options and name not in inner_options(command):
                return f"{command.name} has no option {name}"
            is_value = not has_value
        elif command.name == "train" and word == "ctr":
            options |= options_of(train_ctr)
        elif isinstance(command, click.Group) and not _PLACEHOLDER.search(word):
            inner = command.get_command(click.Context(command), word)
            if inner is None and not is_value:
                return f"{command.name} has no command {word}"
            command = inner or command
            options |= options_of(command)
            is_value = False
        else:
            is_value = False
    return ""


def inner_options(command):
    """Options of `megalith ctl` may stand before the command that they are for."""
    if not isinstance(command, click.Group):
        return set()
    context = click.Context(command)
    inner = [command.get_command(context, name) for name in command.list_commands(context)]
    return set().union(*(options_of(each) for each in inner))


@pytest.mark.parametrize("page", pages())
def test_every_command_of_a_page_exists_with_its_options(page):
    problems = {line: problem for line in shown(page) if (problem := problem_of(line))}
    assert problems == {}


@pytest.mark.parametrize(
    "line",
    ["megalith upp", "megalith up --werkers 2", "megalith ctl status --nope", "megalith ctl x"],
)
def test_a_command_that_does_not_exist_is_found(line):
    assert problem_of(line)


def test_pages_show_commands():
    assert sum(len(shown(page)) for page in pages()) > 80
