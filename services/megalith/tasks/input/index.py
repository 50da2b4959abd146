"""The row counts of all files of a data set: made once, kept in a small file for all workers."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from megalith.errors import BadData
from megalith.runtime.counting import counted
from megalith.runtime.files import write_atomically
from megalith.tasks.input.blocks import IndexedFile, index_file
from megalith.tasks.input.files import found_files
from megalith.tasks.input.windows import Window

_VERSION = 1


@dataclass(frozen=True, slots=True)
class BlockRef:
    """One block of a data set, by its file and its number there."""

    file: IndexedFile
    number: int

    @property
    def num_rows(self) -> int:
        return self.file.rows[self.number]

    @property
    def where(self) -> str:
        return self.file.where(self.number)


@dataclass(frozen=True, slots=True)
class DataIndex:
    """The files of a data set in the order in which they are read."""

    files: tuple[IndexedFile, ...]

    @classmethod
    def build(
        cls,
        patterns: Sequence[str],
        window: Window | None = None,
        header: Sequence[str] = (),
    ) -> Self:
        """Count the rows of all files that the patterns name; of dated ones those of the window.

        `header` has the names of the columns of text files without a header line.
        """
        paths = found_files(patterns, window)
        files = tuple(index_file(path, header) for path in paths)
        index = cls(files)

        if not index.num_rows:
            named = ", ".join(patterns)
            counts = counted(len(files), "file")
            raise BadData(f"{named}: {counts}, and no row in any of them")

        return index

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save_in` wrote."""
        try:
            content = json.loads(path.read_text())
            files = [_as_tuples(file) for file in content["files"]]
            version = content["version"]

            if version != _VERSION:
                raise BadData(f"{path}: index of version {version}, expected {_VERSION}")

            return cls(tuple(files))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadData(f"{path} is no index of data files: {error}") from error

    def save_in(self, folder: Path) -> Path:
        """Write it to a file named after its content, so that no other index takes its place."""
        path = folder / f"data-index-{self.digest}.json"
        write_atomically(path, self._encoded())
        return path

    @property
    def digest(self) -> str:
        """The same for the same files that have not changed."""
        digest = hashlib.sha256(self._encoded()).hexdigest()
        return digest[:12]

    def _encoded(self) -> bytes:
        files = [dataclasses.asdict(file) for file in self.files]
        content = {"version": _VERSION, "files": files}
        return json.dumps(content).encode()

    @property
    def num_rows(self) -> int:
        return sum(sum(file.rows) for file in self.files)

    @property
    def blocks(self) -> list[BlockRef]:
        """Those that have rows."""
        blocks = []
        for file in self.files:
            for number, rows in enumerate(file.rows):
                if rows:
                    blocks.append(BlockRef(file, number))

        return blocks


def joined_tables(tables: Sequence[pa.Table], blocks: Sequence[BlockRef]) -> pa.Table:
    """The rows of several blocks, in types that hold the values of all."""
    are_alike = all(table.schema.equals(tables[0].schema) for table in tables)
    if not are_alike:
        tables = [_plain(table) for table in tables]

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        paths = dict.fromkeys(block.file.path for block in blocks)
        files = ", ".join(paths)
        raise BadData(
            f"{files}: a column has values of one file that the type of another does not hold: "
            f"{error}; write the column with the same type in all files"
        ) from error


def _plain(table: pa.Table) -> pa.Table:
    """Dictionaries as their values, and booleans as 0 and 1, as other files may have them."""
    for number, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_boolean(kind):
            kind = pa.uint8()

        column = table.column(number).cast(kind)
        table = table.set_column(number, field.name, column)

    return table


def _as_tuples(file: dict[str, object]) -> IndexedFile:
    values = {}
    for name, value in file.items():
        values[name] = tuple(value) if isinstance(value, list) else value

    return IndexedFile(**values)  # type: ignore[arg-type]  # a field of another name is a TypeError
