"""Show what differs between two checkpoints, by table and by variable.

changed: the embedding or the optimizer's state differs. redated: only the time of the last
update does. The files of both are checked first.
"""

import click

from megalith.checkpoint.inspection.checkpoint_rows import ROWS_IN_MEMORY
from megalith.checkpoint.inspection.difference import Difference, TableDifference, compare
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
from megalith.runtime.counting import counted

_MOST_NAMES = 20  # of variables that are said one by one; --json has all
_MEMORY = Option(
    ["--memory-mb"],
    type=click.IntRange(min=1),
    default=ROWS_IN_MEMORY >> 20,
    show_default=True,
    metavar="MB",
    help="Rows kept in memory at a time. Less memory reads the files more often.",
)


@command(
    checkpoint_argument("a"),
    checkpoint_argument("b"),
    _MEMORY,
    examples=("megalith ckpt diff model/model.ckpt-120 model/model.ckpt-240",),
)
def diff(call: CheckpointCall, a: Location, b: Location, memory_mb: int) -> None:
    with Bar() as bar:
        found = compare(
            checkpoint_at(a),
            checkpoint_at(b),
            bar,
            memory_mb << 20,
        )

    call.answer(found, _show, is_equal=found.is_equal)


def _show(found: Difference) -> None:
    print(f"A  step {found.step_a:,}  {found.a}")
    print(f"B  step {found.step_b:,}  {found.b}")
    print()
    if found.tables:
        rows = []
        for table in found.tables:
            counts = (
                table.only_in_a,
                table.only_in_b,
                table.changed,
                table.redated,
                table.equal,
            )
            rows.append([table.table, *(f"{count:,}" for count in counts)])

        print_table(("table", "only in A", "only in B", "changed", "redated", "equal"), rows)

    for name, count in found.tables_only_in_a.items():
        print(f"table {name} is only in A, with {counted(count, 'row')}")
    for name, count in found.tables_only_in_b.items():
        print(f"table {name} is only in B, with {counted(count, 'row')}")

    for table in found.tables:
        _show_table(table)

    _show_variables(found)
    _show_blobs(found)
    if found.is_equal:
        print("both hold the same model")


def _show_table(table: TableDifference) -> None:
    if table.settings:
        print(f"\nsettings of table {table.table}")
        for change in table.settings:
            print(f"  {change.setting}: {change.before} in A, {change.after} in B")

    if not table.is_comparable:
        print(f"\ntable {table.table}: the row layout differs, so only ids were compared")

    if table.largest:
        print(f"\nlargest changes of table {table.table}")

        rows = []
        for moved in table.largest:
            rows.append([f"  id {moved.id}", f"{moved.distance:.6g}"])

        print_table(("  row", "distance"), rows)


def _show_variables(found: Difference) -> None:
    if not found.variables and not found.equal_variables:
        return

    equal = counted(found.equal_variables, "variable")
    print(f"\n{equal} equal, {len(found.variables)} not")

    for each in found.variables[:_MOST_NAMES]:
        far = ""
        if each.largest is not None:
            far = f", by {each.largest:.6g} at most"

        print(f"  {each.variable}: {each.what}{far}")

    left = len(found.variables) - _MOST_NAMES
    if left > 0:
        print(f"  and {left} more; --json names them")


def _show_blobs(found: Difference) -> None:
    if not found.blobs and not found.equal_blobs:
        return

    equal = counted(found.equal_blobs, "blob")
    print(f"\n{equal} equal, {len(found.blobs)} not")
    for each in found.blobs[:_MOST_NAMES]:
        print(f"  {each.blob}: {each.what}")

    left = len(found.blobs) - _MOST_NAMES
    if left > 0:
        print(f"  and {left} more; --json names them")
