"""`megalith ckpt export` and `import`: rows for other programs, and from Monolith."""

from collections.abc import Iterable
from pathlib import Path

import click

from megalith.checkpoint.inspection.export import Exported, ExportFormat
from megalith.checkpoint.inspection.export import export as export_checkpoint
from megalith.checkpoint.monolith.importing import Imported, ImportedTable, import_tables
from megalith.cli.ckpt.calls import (
    Bar,
    CheckpointCall,
    checkpoint_argument,
    checkpoint_at,
    command,
)
from megalith.cli.ckpt.text import print_table
from megalith.runtime.commands import Option

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
    "export",
    checkpoint_argument(),
    _FORMAT,
    _TABLE,
    _STATE,
    _OUT,
    examples=("megalith ckpt export model --format csv --table item --out rows",),
)
def export(
    call: CheckpointCall,
    checkpoint: Path,
    kind: str,
    tables: tuple[str, ...],
    with_state: bool,
    out: Path,
) -> None:
    """Write the rows of a checkpoint as Parquet or CSV, a file for each table.

    The columns are id, updated_s (Unix seconds of the last update) and the floats of each segment:
    segment_0, segment_1 and so on, which are lists in Parquet and a column for each float in CSV.
    """
    with Bar() as bar:
        written = export_checkpoint(
            checkpoint_at(checkpoint),
            out,
            ExportFormat(kind),
            list(tables) or None,
            with_state=with_state,
            progress=bar,
        )

    call.answer(written, _show_exported)


def _show_exported(written: Exported) -> None:
    rows = []
    for name, count in written.rows_by_file.items():
        rows.append([f"{written.path}/{name}", f"{count:,}"])

    print_table(("file", "rows"), rows)


# --- import ---

_SOURCE = click.Argument(["source"], metavar="DIR", type=click.Path(path_type=Path))
_MODEL_DIR = Option(
    ["--out"],
    required=True,
    metavar="MODEL_DIR",
    type=click.Path(path_type=Path),
    help="Model directory of the new job; it has no checkpoint yet.",
)
_STEP = Option(
    ["--step"],
    type=click.IntRange(min=0),
    metavar="STEP",
    help="Step of the checkpoint.  [default: the one in the name of the folder]",
)
_PS = Option(
    ["--ps"],
    type=click.IntRange(min=1),
    metavar="N",
    help="Write the files that N ps would have saved; any number of ps restores them.  "
    "[default: as many as Monolith had]",
)
_SEGMENTS = Option(
    ["--segments"],
    multiple=True,
    metavar="TABLE=1:ftrl,16:adagrad",
    help="Row layout of a table whose files do not show it.",
)
_RENAME = Option(
    ["--rename"], multiple=True, metavar="TABLE=NAME", help="Another name for a table."
)


@command(
    "import",
    _SOURCE,
    _MODEL_DIR,
    _STEP,
    _PS,
    _SEGMENTS,
    _RENAME,
    examples=("megalith ckpt import old/model.ckpt-120.assets --out model",),
)
def import_(
    call: CheckpointCall,
    source: Path,
    out: Path,
    step: int | None,
    ps: int | None,
    segments: tuple[str, ...],
    rename: tuple[str, ...],
) -> None:
    """Make a checkpoint of the table files of Monolith, from which a job starts.

    DIR is the folder model.ckpt-STEP.assets with the table files, or a model directory of
    Monolith's, of which the newest is taken. Rows come with the state of their optimizers and the
    time of their last update. Dense variables and admission filters are not imported.
    """
    with Bar() as bar:
        made = import_tables(
            source,
            out,
            step=step,
            num_ps=ps,
            segments=_pairs("--segments", segments),
            names=_pairs("--rename", rename),
            progress=bar,
        )

    call.answer(made, _show_imported)


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, is_pair, value = each.partition("=")
        if not (name and is_pair and value):
            raise click.UsageError(f"{option}: {each} is not like TABLE=...")

        pairs[name] = value

    return pairs


def _show_imported(made: Imported) -> None:
    rows = []
    for table in made.tables:
        rows.append(
            [
                table.name,
                table.row_layout,
                f"{table.rows:,}",
                f"{table.left_out:,}",
            ]
        )

    print_table(("table", "row layout", "rows", "left out"), rows, left=2)

    for table in made.tables:
        for line in _remarks(table):
            print(f"table {table.name}: {line}")

    for what, count in made.left_out.items():
        print(f"not imported: {count} {what}")

    print(f"made {made.path} (step {made.step})")


def _remarks(table: ImportedTable) -> list[str]:
    """What a person should know about the rows of a table."""
    counts = {
        "entries of ids that come again; the last one counts": table.repeated,
        "entries that are no entries of Monolith's": table.malformed,
        "entries of another row layout": table.other_layout,
        "entries that are NaN or infinite": table.not_finite,
        "rows without optimizer state, which begins anew": table.begun_anew,
        "rows without a time, which get that of the newest": table.undated,
    }
    return [f"{count:,} {what}" for what, count in counts.items() if count]
