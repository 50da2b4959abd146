"""Make a checkpoint of the table files of Monolith, from which a job starts.

DIR is the folder model.ckpt-STEP.assets with the table files, or a model directory of
Monolith's, of which the newest is taken. Rows come with the state of their optimizers and the
time of their last update. Dense variables and admission filters are not imported.
"""

from collections.abc import Iterable
from pathlib import Path

import click

from megalith.checkpoint.monolith.importing import Imported, ImportedTable, import_tables
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import Bar, CheckpointCall, command, model_dir_option
from megalith.cli.ckpt.text import print_removed, print_table
from megalith.runtime.config.commands import Option
from megalith.runtime.counting import counted

_SOURCE = click.Argument(["source"], metavar="DIR", type=click.Path(path_type=Path))
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
    _SOURCE,
    model_dir_option(),
    _STEP,
    _PS,
    _SEGMENTS,
    _RENAME,
    examples=("megalith ckpt import old/model.ckpt-120.assets --out model",),
)
def import_(
    call: CheckpointCall,
    source: Path,
    out: Location,
    step: int | None,
    ps: int | None,
    segments: tuple[str, ...],
    rename: tuple[str, ...],
) -> None:
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

    call.answer(made, _show)


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, is_pair, value = each.partition("=")
        if not (name and is_pair and value):
            raise click.UsageError(f"{option}: {each} is not like TABLE=...")

        pairs[name] = value

    return pairs


def _show(made: Imported) -> None:
    print_removed(made.removed)
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
        print(f"not imported: {counted(count, 'file')} of {what}")

    print(f"made {made.path} (step {made.step})")


def _remarks(table: ImportedTable) -> list[str]:
    """What a person should know about the rows of a table."""
    entries = {
        "of ids that come again; the last one counts": table.repeated,
        "that Monolith does not write": table.malformed,
        "of another row layout": table.other_layout,
        "with NaN or infinity": table.not_finite,
    }
    rows = {
        "without optimizer state, which begins anew": table.begun_anew,
        "without a time, for which that of the newest is taken": table.undated,
    }
    said = [
        f"{counted(count, 'entry', 'entries')} {what}" for what, count in entries.items() if count
    ]
    said += [f"{counted(count, 'row')} {what}" for what, count in rows.items() if count]
    return said
