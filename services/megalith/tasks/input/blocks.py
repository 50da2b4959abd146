"""A file as blocks that can be read one by one: the row groups of Parquet, stretches of others.

Text has no row groups, so its lines are counted once: a block is about 8 MB of whole lines. A line
break inside quotes does not end a line of CSV. TSV knows no quotes. A block of TFRecord is about
8 MB of whole records.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from megalith.errors import BadData
from megalith.tasks.input.example_batches import batch_blocks, batch_schema, read_batches
from megalith.tasks.input.files import FileFormat, format_of
from megalith.tasks.input.tf_records import read_records, record_blocks, record_schema

_TEXT_BLOCK_BYTES = 8 << 20
_LONGEST_LINE_BYTES = 64 << 20  # a quote that nothing closes makes one line of all that follow
_NO_VALUES = {b"megalith": b"no values"}
_QUOTE = ord('"')
_LINE_BREAK = ord("\n")
_ABOUT_QUOTES = (
    "; is there a quote inside a value? It has to be written twice, and the whole value in quotes"
)
_DELIMITERS = {FileFormat.CSV: ",", FileFormat.TSV: "\t"}


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file and the rows of each of its blocks.

    Of text and records, `ends` says where each block ends in the file, and `start` where the first
    begins. `header` has the names of the columns if the file itself does not say them. Size and
    time are those at which it was indexed: a file that has changed since then is not read.
    """

    path: str
    size: int
    mtime_ns: int
    rows: tuple[int, ...]
    start: int = 0
    ends: tuple[int, ...] = ()
    header: tuple[str, ...] = ()

    @property
    def format(self) -> FileFormat:
        return format_of(self.path, bool(self.header))

    @property
    def is_text(self) -> bool:
        """Whether the types of its columns are found out."""
        return self.format in _DELIMITERS

    def where(self, block: int) -> str:
        """For messages: the file and its block."""
        what = "row group" if self.format is FileFormat.PARQUET else "block"
        return f"{self.path}, {what} {block}"


def index_file(path: str, header: Sequence[str] = ()) -> IndexedFile:
    """Count the rows of a file's blocks: of Parquet from its footer, of text by reading it.

    `header` has the names of the columns of text whose first line does not have them.
    """
    with _named(path):
        stat = os.stat(path)
        if not stat.st_size:
            raise BadData(f"{path} is empty")

        size = stat.st_size
        modified_ns = stat.st_mtime_ns

        kind = format_of(path, bool(header))
        if kind is FileFormat.TFRECORD:
            ends, rows = record_blocks(path, size)
            return IndexedFile(path, size, modified_ns, rows, 0, ends)

        if kind is FileFormat.EXAMPLES:
            ends, rows = batch_blocks(path, size)
            return IndexedFile(path, size, modified_ns, rows, 0, ends)

        if kind is not FileFormat.PARQUET:
            start, ends, rows = _text_blocks(path, kind, not header)
            names = tuple(header)
            return IndexedFile(path, size, modified_ns, rows, start, ends, names)

        footer = pa.parquet.read_metadata(path)
        groups = range(footer.num_row_groups)
        rows = tuple(footer.row_group(number).num_rows for number in groups)
        return IndexedFile(path, size, modified_ns, rows)


def schema_of(file: IndexedFile, text_columns: Sequence[str] = ()) -> pa.Schema:
    """Names and types of a file's columns.

    Those of text are found out from its first block; `text_columns` stay text, whatever they look
    like.
    """
    with _named(file.path):
        if file.format is FileFormat.PARQUET:
            return pa.parquet.read_schema(file.path)
        if file.format is FileFormat.TFRECORD:
            return record_schema(_content(file, 0), file.where(0))
        if file.format is FileFormat.EXAMPLES:
            return batch_schema(_content(file, 0), file.where(0))

        names = _header(file)
        if not file.rows:
            return pa.schema([(name, pa.string()) for name in names])

        types = {name: pa.string() for name in text_columns if name in names}
        options = pa.csv.ConvertOptions(column_types=types)
        first_block = _read_text(file, 0, names, options)

    fields = []
    for field in first_block.schema:
        # A column that is empty in the first block may be anything in the next.
        if pa.types.is_null(field.type):
            field = field.with_type(pa.string()).with_metadata(_NO_VALUES)
        # Arrow takes text that is not UTF-8 for bytes; whoever reads the column hears of it.
        if pa.types.is_binary(field.type):
            field = field.with_type(pa.string())

        fields.append(field)

    return pa.schema(fields)


def has_no_values(field: pa.Field) -> bool:
    """Whether a column of text is empty in the block from which its type was found out."""
    return bool(field.metadata == _NO_VALUES)


def read_block(file: IndexedFile, block: int, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` of one block, in its types."""
    with _named(file.where(block)):
        _check_unchanged(file)

        if file.format is FileFormat.PARQUET:
            # Opened anew for each block: a worker has thousands of files, and reads one.
            opened = pa.parquet.ParquetFile(file.path)
            table = opened.read_row_group(block, columns=schema.names)
            opened.close()

        elif file.format is FileFormat.TFRECORD:
            table = read_records(_content(file, block), schema, file.where(block))
        elif file.format is FileFormat.EXAMPLES:
            table = read_batches(_content(file, block), schema, file.where(block))

        else:
            options = pa.csv.ConvertOptions(
                column_types={field.name: field.type for field in schema},
                include_columns=schema.names,
            )

            text = _read_text(file, block, _header(file), options)
            table = _without_empty_text(text)

        if table.num_rows != file.rows[block]:
            known = file.rows[block]
            way_out = _ABOUT_QUOTES if file.format is FileFormat.CSV else ""
            raise BadData(
                f"{file.where(block)}: {table.num_rows} rows, but {known} were counted{way_out}"
            )

        return table


def _without_empty_text(table: pa.Table) -> pa.Table:
    """Empty text is a missing value; words such as NA and null are text, as they are in Parquet.

    Among numbers such words are missing values.
    """
    for number, field in enumerate(table.schema):
        if not pa.types.is_string(field.type):
            continue

        column = table.column(number)
        is_empty = pc.equal(pc.binary_length(column), 0)

        if pc.any(is_empty).as_py():
            known = pc.if_else(is_empty, pa.scalar(None, pa.string()), column)
            table = table.set_column(number, field, known)

    return table


def _read_text(
    file: IndexedFile, block: int, names: list[str], options: pa.csv.ConvertOptions
) -> pa.Table:
    content = _content(file, block)
    is_csv = file.format is FileFormat.CSV
    return pa.csv.read_csv(
        pa.BufferReader(content),
        read_options=pa.csv.ReadOptions(column_names=names, block_size=len(content) + 1),
        parse_options=pa.csv.ParseOptions(
            delimiter=_DELIMITERS[file.format],
            quote_char='"' if is_csv else False,
            newlines_in_values=is_csv,
            ignore_empty_lines=False,
        ),
        convert_options=options,
    )


def _content(file: IndexedFile, block: int) -> bytes:
    """The bytes of a block of a file without row groups."""
    start = file.ends[block - 1] if block else file.start
    size = file.ends[block] - start
    with open(file.path, "rb") as opened:
        opened.seek(start)
        return opened.read(size)


def _header(file: IndexedFile) -> list[str]:
    if file.header:
        return list(file.header)

    with open(file.path, "rb") as opened:
        line = opened.read(file.start)

    parse = pa.csv.ParseOptions(delimiter=_DELIMITERS[file.format])
    names: list[str] = pa.csv.read_csv(pa.BufferReader(line), parse_options=parse).column_names
    return names


def _text_blocks(
    path: str, kind: FileFormat, has_header: bool
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(where the lines after the header begin, where blocks end, how many lines each has)."""
    knows_quotes = kind is FileFormat.CSV
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

            if has_header and not header_end and breaks.size:
                header_end = offset + int(breaks[0]) + 1
                breaks = breaks[1:]

            if breaks.size:
                ends.append(offset + int(breaks[-1]) + 1)
                rows.append(breaks.size)

            offset += len(piece)
            line_start = ends[-1] if ends else header_end
            if offset - line_start > _LONGEST_LINE_BYTES:
                way_out = _ABOUT_QUOTES if knows_quotes else ""
                raise BadData(
                    f"{path}: a line of more than {_LONGEST_LINE_BYTES:,} bytes begins at byte "
                    f"{line_start:,}{way_out}"
                )

    if has_header and not header_end:
        raise BadData(f"{path}: one line and no rows; the first line has the names of the columns")

    last_end = ends[-1] if ends else header_end
    if last_end < offset:  # the last line has no line break
        ends.append(offset)
        rows.append(1)

    return header_end, tuple(ends), tuple(rows)


def is_gone(error: BadData) -> bool:
    """Whether it says that a file is not there any more."""
    return isinstance(error.__cause__, FileNotFoundError)


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
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise BadData(f"{where} cannot be read: {error}") from error
