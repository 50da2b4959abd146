"""Calls of a command to the controller and to the parameter servers of a job."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from megalith.cli.command_files import command_name
from megalith.cli.ctl.answers import answer_with, errors_as_one_line
from megalith.cli.ctl.options import GivenOptions, job_options
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR, first_named, named_in
from megalith.control import Controller
from megalith.runtime.config.commands import Command

if TYPE_CHECKING:
    from megalith.client import Cluster


class ControllerCall:
    """One call of a command, with the options that all of them take."""

    def __init__(self, context: click.Context) -> None:
        self._given = GivenOptions(context)
        self.name = self._given.command

    @property
    def is_json(self) -> bool:
        return self._given.is_json

    def answer(self, ask: Callable[[Controller], Any], show: Callable[[Any], None]) -> None:
        """Ask the controller, then show the answer; an error is one line and exit status 1."""
        with self.job() as job:
            answer_with(self.name, self.is_json, lambda: ask(job), show)

    @contextmanager
    def job(self) -> Iterator[Controller]:
        """The job's controller."""
        timeout_s = self._given.timeout_s
        with (
            self._which_job() as (address, directory),
            closing(Controller(address, directory, timeout_s)) as job,
        ):
            yield job

    @contextmanager
    def cluster(self) -> "Iterator[Cluster]":
        """The job's parameter servers."""
        from megalith.client import connect  # with its kernels, which other commands do not need

        timeout_s = self._given.timeout_s
        with (
            errors_as_one_line(self.name),
            self._which_job() as (address, directory),
            connect(address, model_dir=directory, timeout_s=timeout_s) as cluster,
        ):
            yield cluster

    @contextmanager
    def _which_job(self) -> Iterator[tuple[str | Callable[[], str] | None, str | None]]:
        """(The controller's address or how to find it, the model directory), one of them None."""
        by_flags = self._given.pairs("controller", "model_dir")
        named = first_named(*by_flags)
        if named is not None or not self._given.discovery.is_used:
            by_variables = named_in(os.environ, "controller")
            yield named or first_named(by_variables) or (None, DEFAULT_MODEL_DIR)
            return

        # A server's metrics come with this import, so it is only for those who look there.
        from megalith.runtime.joining.presence import Presence

        presence = Presence("ctl", 0, self._given.open_discovery(), "", "")
        try:
            yield presence.find_controller, None
        finally:
            presence.stop()


def command(
    *options: click.Parameter, examples: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Command]:
    """Make the function of a file its command: the docstring of the file is the command's help.

    The function gets a ControllerCall, and after it its own options.
    """

    def register(function: Callable[..., None]) -> Command:
        names = [option.name for option in options]

        def run(**given: Any) -> None:
            call = ControllerCall(click.get_current_context())
            arguments = {name: given[name] for name in names if name is not None}
            function(call, **arguments)

        return Command(
            command_name(function.__name__),
            callback=run,
            params=[*options, *job_options()],
            help=sys.modules[function.__module__].__doc__,
            examples=examples,
        )

    return register
