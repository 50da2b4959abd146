"""The group `megalith ctl`: its options, and what every command to the controller has."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from megalith.cli.ctl.answers import answer_with, errors_as_one_line
from megalith.cli.ctl.options import (
    ControllerOption,
    JsonOption,
    ModelDirOption,
    TimeoutOption,
    with_options_of,
)
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR, first_named, named_in
from megalith.client import Cluster, connect
from megalith.control import Controller
from megalith.discovery.settings import NONE, DiscoverySettings
from megalith.runtime import settings

_PREFIX = "MEGALITH_CTL_"
_HELP = "Drive a running job: status, stop, resume, save."


class _Group(TyperGroup):
    """Says what to write instead of an option that is gone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with errors_as_one_line("ctl"):
            settings.refuse_removed(DiscoverySettings, _PREFIX, args, os.environ)
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Group, no_args_is_help=True, help=_HELP)

(_DISCOVERY,) = settings.leaves(DiscoverySettings)
DiscoveryOption = Annotated[
    str,
    typer.Option(_DISCOVERY.flag, envvar=_DISCOVERY.environment(_PREFIX), help=_DISCOVERY.help),
]
JobOption = Annotated[
    str,
    typer.Option("--job", envvar=f"{_PREFIX}JOB", help="Name of the job in the back end."),
]


@dataclass(frozen=True, slots=True)
class CtlOptions:
    """Options of `megalith ctl` itself; those of a sub-command win."""

    controller: str
    model_dir: str
    as_json: bool
    timeout_s: float
    job: str
    discovery: DiscoverySettings


@app.callback(help=_HELP)
def ctl(
    context: typer.Context,
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
    timeout_s: TimeoutOption = 5.0,
    discovery: DiscoveryOption = NONE,
    job: JobOption = "",
) -> None:
    with errors_as_one_line("ctl"):
        found_by = DiscoverySettings(discovery=discovery)
    context.obj = CtlOptions(controller, model_dir, as_json, timeout_s, job, found_by)


@dataclass(frozen=True, slots=True)
class ControllerCall:
    """One call of a command to the controller, with the options that all of them take."""

    context: typer.Context
    controller: ControllerOption = ""
    model_dir: ModelDirOption = ""
    as_json: JsonOption = False

    @property
    def name(self) -> str:
        return f"ctl {self.context.info_name}"

    @property
    def is_json(self) -> bool:
        return self.as_json or self._target.as_json

    def answer(self, ask: Callable[[Controller], Any], show: Callable[[Any], None]) -> None:
        """Ask the controller, then show the answer; an error is one line and exit status 1."""
        with self.job() as job:
            answer_with(self.name, self.is_json, lambda: ask(job), show)

    @contextmanager
    def job(self) -> Iterator[Controller]:
        """The job's controller."""
        timeout_s = self._target.timeout_s
        with (
            self._which_job() as (address, directory),
            closing(Controller(address, directory, timeout_s)) as job,
        ):
            yield job

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """The job's parameter servers."""
        timeout_s = self._target.timeout_s
        with (
            self._which_job() as (address, directory),
            connect(address, model_dir=directory, timeout_s=timeout_s) as cluster,
        ):
            yield cluster

    @property
    def _target(self) -> CtlOptions:
        target: CtlOptions = self.context.obj
        return target

    @contextmanager
    def _which_job(self) -> Iterator[tuple[str | Callable[[], str] | None, str | None]]:
        """(The controller's address or how to find it, the model directory), one of them None."""
        target = self._target
        of_command = (self.controller, self.model_dir)
        of_group = (target.controller, target.model_dir)
        is_named = any((*of_command, *of_group))
        if is_named or not target.discovery.is_used:
            by_variables = named_in(os.environ, "controller")
            named = first_named(of_command, of_group, by_variables)
            yield named or (None, DEFAULT_MODEL_DIR)
            return

        # A server's metrics come with this import, so it is only for those who look there.
        from megalith.runtime.presence import Presence

        with errors_as_one_line(self.name):
            back_end = target.discovery.open(target.job, "")

        presence = Presence("ctl", 0, back_end, "", "")
        try:
            yield presence.find_controller, None
        finally:
            presence.stop()


def command(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: it gets a ControllerCall, and after it its own options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(with_options_of(ControllerCall, function))
        return function

    return register
