"""`megalith ctl`: look at a running job and drive it.

A command is one file, in `look/` or `drive/`, named as the command. `command_files` says how it is
found.
"""

import click

from megalith.cli.command_files import commands_in
from megalith.cli.ctl.options import PREFIX, bad_settings_as_usage_errors, job_options
from megalith.discovery.settings import DiscoverySettings
from megalith.runtime.config import settings
from megalith.runtime.config.commands import Group

_HELP = """Look at a job and drive it: status, stop, resume, save.

Options may stand before or after the command: `megalith ctl --json status` is `megalith ctl status
--json`.
"""


class _Group(Group):
    """Says what to write instead of an option that is gone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with bad_settings_as_usage_errors(ctx):
            settings.refuse_removed(DiscoverySettings, PREFIX, args, {})

        return super().parse_args(ctx, args)


ctl = _Group(
    "ctl",
    sections={"Look at a job": commands_in("ctl", "look"), "Drive it": commands_in("ctl", "drive")},
    help=_HELP,
    params=job_options(),
    examples=(
        "megalith ctl status --watch",
        "megalith ctl stop --reason 'look at the data'",
        "megalith ctl --model-dir runs/a save",
        "megalith ctl app restart worker-1",
    ),
)
