"""`megalith`: the whole product from one command."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

from megalith.cli import ctl

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(ctl.app, name="ctl")

# The flags are those of a dataclass, parsed by runtime.command_line; typer only passes them on.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _show_version(wanted: bool) -> None:
    if wanted:
        # Imported here, as in the commands below: `megalith ctl` waits for nothing that it does not
        # use.
        from importlib.metadata import version

        print(f"megalith {version('megalith')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
]


@app.callback()
def megalith(version: VersionOption = False) -> None:
    """A training cluster for recommendation models."""


def _up(context: typer.Context) -> None:
    from megalith.cli import jobs

    jobs.up(context)


def _train(context: typer.Context) -> None:
    from megalith.cli import jobs

    jobs.train(context)


def _add_service(name: str, config_class: str, help: str) -> None:
    """`megalith <service>`: the same flags and environment as `python -m megalith.<service>`."""

    def run(context: typer.Context) -> None:
        from megalith.runtime import command_line

        config = getattr(import_module(f"megalith.{name}.config"), config_class)
        serve = import_module(f"megalith.{name}.server").run
        raise typer.Exit(command_line.main(name, config, serve, context.args, os.environ))

    _add_command(name, help, run)


def _add_command(name: str, help: str, run: Callable[[typer.Context], None]) -> None:
    app.command(name, help=help, context_settings=_PASS_ON, add_help_option=False)(run)


_add_command(
    "up", "Start a cluster on this machine and keep it up until Ctrl-C or the end of the job.", _up
)
_add_command(
    "train",
    "Train a task on a cluster of this machine: start it, show progress and a summary, stop it.",
    _train,
)
_add_service(
    "controller",
    "ControllerConfig",
    "Run the controller: membership, routing, barrier, checkpoints.",
)
_add_service("ps", "PsConfig", "Run a parameter server.")
_add_service("worker", "WorkerConfig", "Run a worker.")
_add_service("appmaster", "AppMasterConfig", "Run the AppMaster, which supervises a job.")
