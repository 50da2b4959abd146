"""Write the rows of a checkpoint as Parquet or CSV, a file for each table.

The columns are id, updated_s (Unix seconds of the last update) and the floats of each segment:
segment_0, segment_1 and so on, which are lists in Parquet and a column for each float in CSV.
"""

from pathlib import Path

import click

from megalith.checkpoint.inspection.export import Exported, ExportFormat
from megalith.checkpoint.inspection.export import export as export_checkpoint
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import (
    Bar,
    CheckpointCall,
    checkpoint_argument,
    checkpoint_at,
    command,
)
from megalith.cli.ckpt.text import print_table
from megalith.runtime.config.commands import Option

_FORMAT = Option(
    ["--format", "kind"],
    type=click.Choice([str(kind) for kind in ExportFormat]),
    default=str(ExportFormat.PARQUET),
    show_default=True,
    help="What to write.",
)
_TABLE = Option(
    ["--table", "tables"],
    multiple=True,
    metavar="NAME",
    help="Only this table. May be given several times.  [default: all tables]",
)
_STATE = Option(
    ["--with-state"], is_flag=True, help="Columns for the state of the optimizers, too."
)
_OUT = Option(
    ["--out"],
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where to write. No existing file is replaced.",
)


@command(
    checkpoint_argument(),
    _FORMAT,
    _TABLE,
    _STATE,
    _OUT,
    examples=("megalith ckpt export model --format csv --table item --out rows",),
)
def export(
    call: CheckpointCall,
    checkpoint: Location,
    kind: str,
    tables: tuple[str, ...],
    with_state: bool,
    out: Path,
) -> None:
    with Bar() as bar:
        written = export_checkpoint(
            checkpoint_at(checkpoint),
            out,
            ExportFormat(kind),
            list(tables) or None,
            with_state=with_state,
            progress=bar,
        )

    call.answer(written, _show)


def _show(written: Exported) -> None:
    rows = []
    for name, count in written.rows_by_file.items():
        rows.append([f"{written.path}/{name}", f"{count:,}"])

    print_table(("file", "rows"), rows)
