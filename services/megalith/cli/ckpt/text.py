"""Figures and tables for people: plain text, in columns that fit a terminal of 80."""

from collections.abc import Sequence

_BYTES_BY_UNIT = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
_SECONDS_BY_UNIT = {"days": 86400, "h": 3600, "min": 60}


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print rows under titles; the first `left` columns begin at the left, figures end right."""
    lines = [titles, *rows]
    widths = []
    for column in zip(*lines, strict=True):
        widths.append(max(len(cell) for cell in column))

    for line in lines:
        cells = []
        for number, cell in enumerate(line):
            width = widths[number]
            if number < left:
                cells.append(cell.ljust(width))
            else:
                cells.append(cell.rjust(width))

        print("  ".join(cells).rstrip())


def size(count: int) -> str:
    """Bytes, as people read them."""
    for unit, factor in _BYTES_BY_UNIT.items():
        if count >= factor:
            return f"{count / factor:.1f} {unit}"

    return f"{count} B"


def duration(seconds: float) -> str:
    for unit, factor in _SECONDS_BY_UNIT.items():
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"

    return f"{seconds:.0f} s"


def number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def print_removed(paths: Sequence[str]) -> None:
    for path in paths:
        print(f"removed {path}, left of a command that was killed")
