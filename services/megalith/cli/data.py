"""`megalith data`: looking at training data."""

import click
from rich.console import Console
from rich.table import Table

from megalith.cli.screen.output import print_line
from megalith.errors import MegalithError
from megalith.runtime.config.commands import Command, Group, LazyCommand, Option
from megalith.runtime.counting import counted
from megalith.tasks.ctr_options import names
from megalith.tasks.input.columns import Label
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.inspection import ColumnSummary, Inspection, inspect
from megalith.tasks.input.layouts import LAYOUTS

_MAX_ROWS = 1_000_000


def _inspect(
    files: tuple[str, ...], label: str, text: str, header: str, layout: str, rows: int
) -> int:
    console = Console()
    if layout:
        known = LAYOUTS[layout]
        header = header or known.header
        text = text or known.text

    try:
        index = DataIndex.build(files, header=names(header))
        wanted = Label.parse(label) if label else None
        found = inspect(index, max_rows=rows, label=wanted, text_columns=names(text))
    except MegalithError as error:
        raise click.ClickException(str(error)) from None

    _print(found, label, console)
    return 0


def _print(found: Inspection, label: str, console: Console) -> None:
    files = counted(found.num_files, "file")
    rows = counted(found.num_rows, "row")
    print_line(console, f"{files}, {rows}")
    for line in found.differences:
        print_line(console, line)
    if found.differences:
        left_out = counted(found.rows_left_out, "row")
        print_line(console, f"the rows of files with other columns are not read: {left_out}")

    alike = found.num_rows - found.rows_left_out
    if found.rows_read < alike:
        others = "of the others" if found.rows_left_out else "of these"
        print_line(
            console, f"{others}, the first {found.rows_read:,} were read; --rows 0 reads all"
        )

    table = Table(box=None, pad_edge=False)

    for heading in ("column", "type"):
        table.add_column(heading)
    for heading in ("different", "missing", "least", "greatest"):
        table.add_column(heading, justify="right")

    for column in found.columns:
        table.add_row(*_row(column))

    console.print(table, highlight=False)
    if found.label_rate is not None:
        print_line(console, f"label {label}: {found.label_rate:.4f} of the rows")


def _row(column: ColumnSummary) -> tuple[str, ...]:
    distinct = f"over {column.distinct:,}" if column.has_more else f"{column.distinct:,}"
    return (
        column.name,
        column.type,
        distinct,
        f"{column.missing:,}",
        column.least,
        column.greatest,
    )


inspect_command = Command(
    "inspect",
    params=[
        click.Argument(["files"], nargs=-1, required=True, metavar="FILES..."),
        Option(
            ["--label"], default="", help="A column, or a comparison: prints how often it is 1."
        ),
        Option(["--text"], default="", help="Columns of CSV and TSV that stay text."),
        Option(
            ["--header"],
            default="",
            help="Names of the columns of CSV and TSV files that have no header line. Text that "
            "does not end in .csv is then read as TSV.",
        ),
        Option(
            ["--layout"],
            type=click.Choice(["", *LAYOUTS]),
            default="",
            help="criteo: header and text columns of Criteo's click logs.",
        ),
        Option(
            ["--rows"],
            type=click.IntRange(0),
            default=_MAX_ROWS,
            help=f"How many rows are read; 0 = all.  [default: {_MAX_ROWS:,}]",
        ),
    ],
    help="Print columns, types, different values, missing values and the rate of a label.",
    callback=_inspect,
    examples=("megalith data inspect 'clicks/*.parquet' --label click",),
)

data = Group(
    "data",
    sections={
        "Commands": (
            LazyCommand(
                "inspect",
                "megalith.cli.data:inspect_command",
                "Columns, types, different values, missing values, label rate.",
            ),
        )
    },
    help="Look at training data.",
)
