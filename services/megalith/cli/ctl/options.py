"""Options that many commands take, declared once.

Each may stand before or after a sub-command: `megalith ctl --json status` is `megalith ctl status
--json`. The group and the command both have it, and the nearest one counts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR
from megalith.discovery.interface import Discovery
from megalith.discovery.settings import NONE, DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runtime.config import settings
from megalith.runtime.config.commands import Option

PREFIX = "MEGALITH_CTL_"
_WHICH_JOB = "Which job"
_TIMEOUT_S = 5.0

(_DISCOVERY,) = settings.leaves(DiscoverySettings)
_CONTROLLER_HELP = f"Address of the controller.  [env: {PREFIX}CONTROLLER]"
_APPMASTER_HELP = (
    "Address of the AppMaster; without it, found through the model directory.  "
    f"[env: {PREFIX}APPMASTER]"
)
_MODEL_DIR_HELP = (
    f"Model directory of the job.  [default: {DEFAULT_MODEL_DIR}; env: {PREFIX}MODEL_DIR]"
)
_TIMEOUT_HELP = f"Seconds to look for the job.  [default: {_TIMEOUT_S:g}]"


def job_options() -> list[click.Parameter]:
    """How a command finds its controller, and how it answers."""
    return [
        _model_dir(),
        Option(["--controller"], section=_WHICH_JOB, metavar="HOST:PORT", help=_CONTROLLER_HELP),
        Option(
            [_DISCOVERY.flag],
            section=_WHICH_JOB,
            metavar="URL",
            help=f"{_DISCOVERY.help}  [default: {NONE}; env: {_DISCOVERY.environment(PREFIX)}]",
        ),
        Option(
            ["--job"],
            section=_WHICH_JOB,
            metavar="NAME",
            help=f"Name of the job in the back end.  [env: {PREFIX}JOB]",
        ),
        *_answer_options(),
    ]


def application_options() -> list[click.Parameter]:
    """How a command finds its AppMaster, and how it answers."""
    return [
        _model_dir(),
        Option(["--appmaster"], section=_WHICH_JOB, metavar="HOST:PORT", help=_APPMASTER_HELP),
        *_answer_options(),
    ]


def _model_dir() -> Option:
    return Option(["--model-dir"], section=_WHICH_JOB, metavar="DIR", help=_MODEL_DIR_HELP)


def _answer_options() -> list[click.Parameter]:
    return [
        Option(["--json", "as_json"], is_flag=True, default=None, help="Print JSON for scripts."),
        Option(
            ["--timeout-s"],
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help=_TIMEOUT_HELP,
        ),
    ]


def directory_option() -> Option:
    """Where a save goes."""
    return Option(
        ["--directory"],
        default="",
        metavar="DIR",
        help="Where to save, not another job's: a directory or a URL like s3://bucket/copy.  "
        "[default: where the job's checkpoints are]",
    )


@contextmanager
def bad_settings_as_usage_errors(context: click.Context) -> Iterator[None]:
    """Inside, a setting that cannot be is one line and exit status 2."""
    try:
        yield
    except InvalidSetting as error:
        raise click.UsageError(str(error), context) from None


class GivenOptions:
    """What was given for the shared options, on either side of the sub-command."""

    def __init__(self, context: click.Context) -> None:
        self._context = context

    @property
    def command(self) -> str:
        """`megalith ctl status`, for messages."""
        return self._context.command_path

    @property
    def is_json(self) -> bool:
        return bool(self.nearest("as_json", False))

    @property
    def timeout_s(self) -> float:
        timeout_s: float = self.nearest("timeout_s", _TIMEOUT_S)
        return timeout_s

    @property
    def discovery(self) -> DiscoverySettings:
        """The back end in which the command looks for its job."""
        in_environment = os.environ.get(f"{PREFIX}DISCOVERY", NONE)
        url = self.nearest("discovery", in_environment)

        with bad_settings_as_usage_errors(self._context):
            settings.refuse_removed(DiscoverySettings, PREFIX, (), os.environ)
            return DiscoverySettings(discovery=url)

    def open_discovery(self) -> Discovery | None:
        """That back end, opened."""
        in_environment = os.environ.get(f"{PREFIX}JOB", "")
        job = self.nearest("job", in_environment)
        with bad_settings_as_usage_errors(self._context):
            return self.discovery.open(job, DEFAULT_MODEL_DIR)

    def nearest(self, name: str, otherwise: Any) -> Any:
        """The value of the innermost command that was given one."""
        for context in self._contexts():
            value = context.params.get(name)
            if value is not None:
                return value

        return otherwise

    def pairs(self, first: str, second: str) -> list[tuple[str, str]]:
        """What two options have for each command, the innermost one first."""
        return [
            (context.params.get(first) or "", context.params.get(second) or "")
            for context in self._contexts()
        ]

    def _contexts(self) -> Iterator[click.Context]:
        context: click.Context | None = self._context
        while context is not None:
            yield context
            context = context.parent
