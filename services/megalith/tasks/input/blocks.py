"""A file as blocks that can be read one by one: the row groups of Parquet, stretches of text lines.

Text has no row groups, so its lines are counted once: a block is about 8 MB of whole lines. A line
break inside quotes does not end a line of CSV. TSV knows no quotes.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from megalith.errors import BadData
from megalith.tasks.input.files import FileFormat, format_of

_TEXT_BLOCK_BYTES = 8 << 20
_QUOTE = ord('"')
_LINE_BREAK = ord("\n")
_DELIMITERS = {FileFormat.CSV: ",", FileFormat.TSV: "\t"}


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file and the rows of each of its blocks.

    Of text, `ends` says where each block ends in the file, and `start` where the first begins. Size
    and time are those at which it was indexed: a file that has changed since then is not read.
    """

    path: str
    size: int
    mtime_ns: int
    rows: tuple[int, ...]
    start: int = 0
    ends: tuple[int, ...] = ()

    @property
    def format(self) -> FileFormat:
        return format_of(self.path)

    def where(self, block: int) -> str:
        """For messages: the file and its block."""
        what = "row group" if self.format is FileFormat.PARQUET else "block"
        return f"{self.path}, {what} {block}"


def index_file(path: str) -> IndexedFile:
    """Count the rows of a file's blocks: of Parquet from its footer, of text by reading it."""
    with _named(path):
        stat = os.stat(path)
        if not stat.st_size:
            raise BadData(f"{path} is empty")

        if format_of(path) is not FileFormat.PARQUET:
            start, ends, rows = _text_blocks(path)
            return IndexedFile(path, stat.st_size, stat.st_mtime_ns, rows, start, ends)

        footer = pa.parquet.read_metadata(path)
        groups = range(footer.num_row_groups)
        rows = tuple(footer.row_group(number).num_rows for number in groups)
        return IndexedFile(path, stat.st_size, stat.st_mtime_ns, rows)


def schema_of(file: IndexedFile, text_columns: Sequence[str] = ()) -> pa.Schema:
    """Names and types of a file's columns.

    Those of text are found out from its first block; `text_columns` stay text, whatever they look
    like.
    """
    with _named(file.path):
        if file.format is FileFormat.PARQUET:
            return pa.parquet.read_schema(file.path)

        names = _header(file)
        if not file.rows:
            return pa.schema([(name, pa.string()) for name in names])

        types = {name: pa.string() for name in text_columns if name in names}
        options = pa.csv.ConvertOptions(column_types=types)
        found = _read_text(file, 0, names, options).schema

    # A column that is empty in the first block may be anything in the next.
    fields = [
        field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in found
    ]
    return pa.schema(fields)


def read_block(file: IndexedFile, block: int, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` of one block, in its types."""
    with _named(file.where(block)):
        _check_unchanged(file)
        if file.format is FileFormat.PARQUET:
            # Opened anew for each block: a worker has thousands of files, and reads one.
            opened = pa.parquet.ParquetFile(file.path)
            table = opened.read_row_group(block, columns=schema.names)
            opened.close()
        else:
            options = pa.csv.ConvertOptions(
                column_types={field.name: field.type for field in schema},
                include_columns=schema.names,
                strings_can_be_null=True,
            )
            table = _read_text(file, block, _header(file), options)

        if table.num_rows != file.rows[block]:
            counted = file.rows[block]
            raise BadData(f"{file.where(block)}: {table.num_rows} rows, but {counted} were counted")

        return table


def _read_text(
    file: IndexedFile, block: int, names: list[str], options: pa.csv.ConvertOptions
) -> pa.Table:
    start = file.ends[block - 1] if block else file.start
    with open(file.path, "rb") as opened:
        opened.seek(start)
        content = opened.read(file.ends[block] - start)

    is_csv = file.format is FileFormat.CSV
    return pa.csv.read_csv(
        io.BytesIO(content),
        read_options=pa.csv.ReadOptions(column_names=names, block_size=len(content) + 1),
        parse_options=pa.csv.ParseOptions(
            delimiter=_DELIMITERS[file.format],
            quote_char='"' if is_csv else False,
            newlines_in_values=is_csv,
            ignore_empty_lines=False,
        ),
        convert_options=options,
    )


def _header(file: IndexedFile) -> list[str]:
    with open(file.path, "rb") as opened:
        line = opened.read(file.start)

    parse = pa.csv.ParseOptions(delimiter=_DELIMITERS[file.format])
    names: list[str] = pa.csv.read_csv(io.BytesIO(line), parse_options=parse).column_names
    return names


def _text_blocks(path: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(where the lines after the header begin, where blocks end, how many lines each has)."""
    knows_quotes = format_of(path) is FileFormat.CSV
    ends: list[int] = []
    rows: list[int] = []
    header_end = 0
    offset = 0
    is_quoted = 0  # whether a quote is open at the beginning of a piece

    with open(path, "rb") as file:
        while piece := file.read(_TEXT_BLOCK_BYTES):
            data = np.frombuffer(piece, np.uint8)
            breaks = np.flatnonzero(data == _LINE_BREAK)

            if knows_quotes:
                num_quotes = np.cumsum(data == _QUOTE) + is_quoted
                open_quotes = num_quotes & 1  # every second one closes
                is_quoted = int(open_quotes[-1])
                breaks = breaks[open_quotes[breaks] == 0]

            if not header_end and breaks.size:
                header_end = offset + int(breaks[0]) + 1
                breaks = breaks[1:]

            if breaks.size:
                ends.append(offset + int(breaks[-1]) + 1)
                rows.append(breaks.size)

            offset += len(piece)

    if not header_end:
        raise BadData(f"{path}: one line and no rows; the first line has the names of the columns")

    last_end = ends[-1] if ends else header_end
    if last_end < offset:  # the last line has no line break
        ends.append(offset)
        rows.append(1)

    return header_end, tuple(ends), tuple(rows)


def _check_unchanged(file: IndexedFile) -> None:
    stat = os.stat(file.path)
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
        raise BadData(
            f"{file.path} has changed since its rows were counted: {file.size:,} bytes then, "
            f"{stat.st_size:,} now; start the job again to count anew"
        )


@contextmanager
def _named(where: str) -> Iterator[None]:
    """What goes wrong with a file, as an error that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadData(f"{where}: the file is gone") from error
    except (OSError, pa.ArrowException) as error:
        raise BadData(f"{where} cannot be read: {error}") from error
