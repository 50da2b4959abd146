"""`megalith ctl`: look at a running job and drive it.

A command is one line of the table below, and a function with `@command(...)` in a file of this
folder.
"""

import click

from megalith.cli.ctl.options import PREFIX, bad_settings_as_usage_errors, job_options
from megalith.discovery.settings import DiscoverySettings
from megalith.runtime import settings
from megalith.runtime.commands import Group, LazyCommand

_SECTIONS = {
    "Look at a job": (
        LazyCommand(
            "status",
            "megalith.cli.ctl.status:status",
            "Show every process, the step, who holds training, the last save and the next one.",
        ),
        LazyCommand(
            "training-status", "megalith.cli.ctl.status:training_status", "Show the global step."
        ),
        LazyCommand(
            "block-status",
            "megalith.cli.ctl.holding:block_status",
            "Show which workers wait at the barrier.",
        ),
        LazyCommand(
            "tables",
            "megalith.cli.ctl.tables:tables",
            "Show what each table holds, and what was left out of it; or drop one.",
        ),
        LazyCommand(
            "variables",
            "megalith.cli.ctl.tables:variables",
            "Show the parts of each variable, and the updates that were left out.",
        ),
    ),
    "Drive it": (
        LazyCommand(
            "stop",
            "megalith.cli.ctl.holding:stop",
            "Hold training: every worker blocks at its next step.",
        ),
        LazyCommand(
            "resume",
            "megalith.cli.ctl.holding:resume",
            "Let training go on that an operator or a ps out of memory stopped.",
        ),
        LazyCommand(
            "save",
            "megalith.cli.ctl.saving:save",
            "Save a checkpoint and wait until it is complete.",
        ),
        LazyCommand(
            "expire",
            "megalith.cli.ctl.tables:expire",
            "Drop expired rows now, instead of at the next --expire-every-s.",
        ),
        LazyCommand(
            "app",
            "megalith.cli.ctl.application:app",
            "The job as its platform sees it: kill, succeed, savepoints, restarts.",
        ),
    ),
}

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
    sections=_SECTIONS,
    help=_HELP,
    params=job_options(),
    examples=(
        "megalith ctl status --watch",
        "megalith ctl stop --reason 'look at the data'",
        "megalith ctl --model-dir runs/a save",
        "megalith ctl app restart worker-1",
    ),
)
