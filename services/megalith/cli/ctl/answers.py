"""How a command answers: as text or JSON, and an error as one line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from click.exceptions import Exit

from megalith.errors import MegalithError, PeerUnreachable
from megalith.runtime.json_text import json_text

R = TypeVar("R")


@contextmanager
def errors_as_one_line(command: str) -> Iterator[None]:
    """Inside, an error is one line on stderr and exit status 1."""
    try:
        yield
    except MegalithError as error:
        from megalith.wire.status import status_of

        line = " ".join(str(error).split())
        status = status_of(type(error)).name
        print(f"{command}: {line}{_way_out(error)} [{status}]", file=sys.stderr)
        raise Exit(1) from None
    except BrokenPipeError:  # who reads the output has seen enough
        raise
    except OSError as error:  # a disk that is full, a file that may not be written
        print(f"{command}: {error}", file=sys.stderr)
        raise Exit(1) from None


def _way_out(error: MegalithError) -> str:
    """The option that may be wrong, if a server was named by its address and is not there."""
    context = click.get_current_context(silent=True)
    while isinstance(error, PeerUnreachable) and context is not None:
        for name in ("controller", "appmaster"):
            if context.params.get(name):
                return f"; check --{name}"

        context = context.parent

    return ""


def answer_with(
    command: str, as_json: bool, ask: Callable[[], R], show: Callable[[R], None]
) -> None:
    """Ask, then show or print the answer; an error is one line on stderr and exit status 1."""
    with errors_as_one_line(command):
        answer = ask()

    if as_json:
        printed = {"ok": True} if answer is None else answer
        print(json_text(printed))
    else:
        show(answer)


def say(text: str) -> Callable[[Any], None]:
    """A way to show an answer that has nothing to tell but that it came."""
    return lambda _answer: print(text)
