"""`megalith ckpt ls` and `show`: what checkpoints there are, and what lies in one."""

import time
from datetime import datetime
from pathlib import Path

import click

from megalith.checkpoint.inspection.details import Details, TableDetails, details
from megalith.checkpoint.inspection.overview import Entry, FolderStanding, Overview, overview
from megalith.cli.ckpt.calls import CheckpointCall, checkpoint_argument, checkpoint_at, command
from megalith.cli.ckpt.text import counted, duration, number, print_table, size
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR

_DIRECTORY = click.Argument(
    ["directory"],
    metavar="[DIR]",
    default=DEFAULT_MODEL_DIR,
    type=click.Path(path_type=Path),
)


@command("ls", _DIRECTORY, examples=("megalith ckpt ls model", "megalith ckpt ls --json"))
def ls(call: CheckpointCall, directory: Path) -> None:
    """List the checkpoints of a model directory, the oldest first.

    The state of a checkpoint is one of these. newest: a job starts from it. listed: the list of the
    directory names it. kept: it is complete, but the list does not name it. exempt: it is never
    removed. incomplete: a save that is under way, or was killed. damaged: its manifest cannot be
    read. missing: the list names it, but it is gone.
    """
    call.answer(overview(directory), _show_overview)


def _show_overview(found: Overview) -> None:
    if not found.entries:
        print(f"{found.path} has no checkpoints")
        return

    rows = []
    for entry in found.entries:
        age_s = entry.age_s(found.now_s)
        rows.append(
            [
                entry.name,
                _state(entry),
                number(entry.step),
                "-" if age_s is None else duration(age_s),
                number(entry.rows),
                size(entry.bytes),
            ]
        )

    print_table(("checkpoint", "state", "step", "age", "rows", "size"), rows, left=2)
    for entry in found.entries:
        if entry.problem and entry.standing != FolderStanding.INCOMPLETE:
            print(f"{entry.name}: {entry.problem}")


def _state(entry: Entry) -> str:
    if entry.standing != FolderStanding.COMPLETE:
        return str(entry.standing)
    if entry.is_newest:
        return "newest"
    if entry.is_exempt:
        return "exempt"

    return "listed" if entry.is_listed else "kept"


@command("show", checkpoint_argument(), examples=("megalith ckpt show model/model.ckpt-120",))
def show(call: CheckpointCall, checkpoint: Path) -> None:
    """Show what lies in a checkpoint: tables, variables, files, who saved it.

    Its manifest is read and the sizes of its files are checked; `megalith ckpt verify` checks all.
    """
    call.answer(details(checkpoint_at(checkpoint)), _show_details)


def _show_details(found: Details) -> None:
    saved_at = datetime.fromtimestamp(found.saved_at_s)
    saved = saved_at.strftime("%Y-%m-%d %H:%M:%S")
    age_s = max(0.0, time.time() - found.saved_at_s)
    num_files = counted(len(found.files), "file")

    print(found.path)
    print(f"step {found.step:,}, saved {saved} ({duration(age_s)} ago) by {found.num_ps} ps")
    print(f"{found.rows:,} rows, {size(found.bytes)} in {num_files}")

    if found.buckets_by_ps:
        shares = " + ".join(str(count) for count in found.buckets_by_ps)
        print(f"buckets by ps: {shares}")

    if found.increments:
        counts = counted(found.increments, "increment")
        print(f"{counts} since then: step and rows above are those after the last one")

    if found.cursors:
        print(f"input cursors of {counted(found.cursors, 'worker')}")

    if found.tables:
        print()
        rows = [_table_row(table) for table in found.tables]
        print_table(("table", "segments", "filter", "rows", "size"), rows, left=3)

        for table in found.tables:
            if table.features and table.features != [table.name]:
                print(f"features of {table.name}: {', '.join(table.features)}")

    if found.variables:
        print()
        rows = []
        for each in found.variables:
            rows.append(
                [
                    each.name,
                    each.dtype,
                    str(each.shape),
                    each.optimizer,
                    str(each.parts),
                ]
            )

        print_table(("variable", "dtype", "shape", "optimizer", "parts"), rows, left=4)

    print()
    files = []
    for file in found.files:
        files.append([file.name, f"{file.rows:,}", size(file.bytes)])

    print_table(("file", "rows", "size"), files)


def _table_row(table: TableDetails) -> list[str]:
    segments = [f"{segment.dim} {segment.optimizer}" for segment in table.segments]
    admission = "-"
    if table.filter_bytes is not None:
        kind = table.admission.removesuffix("_hash_filter")
        admission = f"{kind} {size(table.filter_bytes)}"

    return [
        table.name,
        " + ".join(segments),
        admission,
        f"{table.rows:,}",
        size(table.bytes),
    ]
