"""Tables that fit the terminal: a narrow one gets fewer columns, and never a figure that is cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

_GAP = 2  # cells between two columns
_EDGES = 2  # cells left and right of a table
_MAX_WIDTH = 400
_FOLDED = 24  # cells of the first column, if there is no room for more


@dataclass(frozen=True, slots=True)
class Column:
    """A title, and how soon the column goes if there is no room: 1 first, 0 never."""

    title: str
    goes: int = 0
    is_figure: bool = True


def room(console: Console) -> int:
    """Cells that a table may take: those of the terminal. A file has as many as one needs."""
    return console.width if console.is_terminal else _MAX_WIDTH


def print_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as there is room for."""
    console = Console()
    width = room(console)
    console.width = max(console.width, width)
    console.print(fitted(columns, rows, width), highlight=False)


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """The table in `width` cells; below it, the columns that found no room.

    Long texts of the first column are folded before others go.
    """
    kept = list(range(len(columns)))
    while _width(columns, rows, kept) > width:
        may_go = [number for number in kept if columns[number].goes]
        if not may_go:
            break

        kept.remove(min(may_go, key=lambda number: columns[number].goes))

    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for number in kept:
        column = columns[number]
        is_first = number == 0
        table.add_column(
            column.title,
            no_wrap=not is_first,
            overflow="fold",
            justify="right" if column.is_figure else "left",
        )

    for row in rows:
        table.add_row(*(row[number] for number in kept))

    left_out = [column.title for number, column in enumerate(columns) if number not in kept]
    if not left_out:
        return table

    note = f" a wider terminal also shows: {', '.join(left_out)}"
    return Group(table, Text(note, style="dim"))


def _width(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    gaps = _GAP * (len(kept) - 1)
    total = _EDGES + gaps
    for number in kept:
        cells = [row[number] for row in rows]
        cells.append(columns[number].title)
        width = max(_cells_of(cell) for cell in cells)
        if number == 0:
            width = min(width, _FOLDED)

        total += width

    return total


def _cells_of(text: str) -> int:
    shown = Text.from_markup(text)
    return cell_len(shown.plain)
