"""Figures and tables for people: plain text, in columns that fit a terminal of 80."""

from collections.abc import Sequence


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
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"

    return f"{count} B"


def duration(seconds: float) -> str:
    for unit, factor in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"

    return f"{seconds:.0f} s"


def number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """`1 file`, `2 files`."""
    if count == 1:
        return f"1 {singular}"

    plural = plural or f"{singular}s"
    return f"{count:,} {plural}"
