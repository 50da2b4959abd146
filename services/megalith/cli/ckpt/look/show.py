"""Show what lies in a checkpoint: tables, variables, blobs, files, who saved it.

Its manifest is read and the sizes of its files are checked; `megalith ckpt verify` checks all.
"""

import time
from datetime import datetime

from megalith.checkpoint.inspection.details import Details, TableDetails, details
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import CheckpointCall, checkpoint_argument, checkpoint_at, command
from megalith.cli.ckpt.text import duration, print_table, size
from megalith.runtime.counting import counted


@command(checkpoint_argument(), examples=("megalith ckpt show model/model.ckpt-120",))
def show(call: CheckpointCall, checkpoint: Location) -> None:
    call.answer(details(checkpoint_at(checkpoint)), _show_details)


def _show_details(found: Details) -> None:
    saved_at = datetime.fromtimestamp(found.saved_at_s)
    saved = saved_at.strftime("%Y-%m-%d %H:%M:%S")
    age_s = max(0.0, time.time() - found.saved_at_s)
    num_files = counted(len(found.files), "file")

    print(found.path)
    print(f"step {found.step:,}, saved {saved} ({duration(age_s)} ago) by {found.num_ps} ps")
    print(f"{counted(found.rows, 'row')}, {size(found.bytes)} in {num_files}")

    if found.buckets_by_ps:
        shares = " + ".join(str(count) for count in found.buckets_by_ps)
        print(f"buckets by ps: {shares}")

    if found.increments:
        counts = counted(found.increments, "increment")
        print(f"{counts} since then: step and rows above are those after the last one")

    if found.has_pieces:
        print("input cursor of all pieces, for any number of workers")
    elif found.cursors:
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

    if found.blobs:
        print()
        rows = [[blob.name, size(blob.bytes)] for blob in found.blobs]
        print_table(("blob", "size"), rows)

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
