"""What all commands of `megalith ckpt` have: --json, one line for an error, a bar for long work."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.exceptions import Exit
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.storage.location import Location, locate
from megalith.cli.command_files import command_name
from megalith.cli.ctl.answers import errors_as_one_line
from megalith.errors import InvalidSetting
from megalith.runtime.config.commands import Command, Option
from megalith.runtime.json_text import json_text

_LINE_S = 10.0  # between lines about long work where there is no terminal to redraw


def location(text: str) -> Location:
    """The type of an argument that is a path or a URL of an object store."""
    try:
        return locate(text)
    except InvalidSetting as error:
        raise click.BadParameter(str(error)) from error


class CheckpointCall:
    """One call of a command."""

    def __init__(self, name: str, as_json: bool) -> None:
        self.name = name
        self.is_json = as_json

    def answer(self, answer: Any, show: Callable[[Any], None], **more: Any) -> None:
        """Show an answer, or print it as JSON together with `more`."""
        if self.is_json:
            print(json_text({**dataclasses.asdict(answer), **more}))
        else:
            show(answer)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Inside, an error is one line on stderr and exit status 1."""
        try:
            with errors_as_one_line(self.name):
                yield
        except BrokenPipeError:
            raise  # `| head` has read enough: click ends the command without a word
        except OSError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            raise Exit(1) from None


def command(
    *params: click.Parameter, examples: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Command]:
    """Make the function of a file its command: the docstring of the file is the command's help.

    The function gets a CheckpointCall, and after it its own parameters.
    """

    def register(function: Callable[..., None]) -> Command:
        def run(as_json: bool, **given: Any) -> None:
            call = CheckpointCall(click.get_current_context().command_path, as_json)
            with call.errors():
                function(call, **given)

        json_option = Option(["--json", "as_json"], is_flag=True, help="Print JSON for scripts.")
        return Command(
            command_name(function.__name__),
            callback=run,
            params=[*params, json_option],
            help=sys.modules[function.__module__].__doc__,
            examples=examples,
        )

    return register


def checkpoint_argument(name: str = "checkpoint") -> click.Argument:
    return click.Argument(
        [name],
        metavar=name.upper(),
        type=location,
    )


def model_dir_option() -> Option:
    """Where a command puts a checkpoint for another job."""
    return Option(
        ["--out"],
        required=True,
        metavar="MODEL_DIR",
        type=location,
        help="Model directory of the new job, or its --checkpoint-dir; it has no checkpoint yet.",
    )


def checkpoint_at(path: Location) -> Location:
    """The checkpoint at a path; of a model directory the newest one."""
    is_model_dir = not (path / MANIFEST).exists() and (path / LIST).exists()
    if is_model_dir:
        return catalog.latest(path) or path

    return path


class Bar:
    """How far long work is: a bar on a terminal, a line now and then elsewhere, on stderr."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task("", total=None, visible=False)
        self._what = ""
        self._total = 0
        self._done = 0
        self._said_at = time.monotonic()

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, what: str, total_bytes: int) -> None:
        self._what = what
        self._total = total_bytes
        self._done = 0
        self._bar.reset(self._task, total=total_bytes, description=what, visible=True)

    def add(self, done_bytes: int) -> None:
        self._done += done_bytes
        self._bar.update(self._task, completed=self._done)

        now = time.monotonic()
        silent_s = now - self._said_at
        if self._is_terminal or silent_s < _LINE_S:
            return

        self._said_at = now
        share = self._done / max(self._total, 1)
        print(f"{self._what}: {share:.0%}", file=sys.stderr, flush=True)
