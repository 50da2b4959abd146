"""The row counts of all files of a data set: made once, kept in a small file for all workers."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from megalith.errors import BadData
from megalith.runtime.files import write_atomically
from megalith.tasks.input.blocks import IndexedFile, index_file
from megalith.tasks.input.files import found_files

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
    def build(cls, patterns: Sequence[str]) -> Self:
        """Count the rows of all files that the patterns name."""
        files = tuple(index_file(path) for path in found_files(patterns))
        index = cls(files)
        if not index.num_rows:
            raise BadData(f"{', '.join(patterns)}: {len(files)} files, and no row in any of them")

        return index

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save_in` wrote."""
        try:
            content = json.loads(path.read_text())
            files = [_as_tuples(file) for file in content["files"]]
            if content["version"] != _VERSION:
                raise BadData(f"{path}: index of version {content['version']}, expected {_VERSION}")

            return cls(tuple(files))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadData(f"{path} is no index of data files: {error}") from error

    def save_in(self, folder: Path) -> Path:
        """Write it to a file named after its content, so that no other index takes its place."""
        files = [dataclasses.asdict(file) for file in self.files]
        content = {"version": _VERSION, "files": files}
        encoded = json.dumps(content).encode()

        digest = hashlib.sha256(encoded).hexdigest()[:12]
        path = folder / f"data-index-{digest}.json"
        write_atomically(path, encoded)
        return path

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


def _as_tuples(file: dict[str, object]) -> IndexedFile:
    values = {}
    for name, value in file.items():
        values[name] = tuple(value) if isinstance(value, list) else value

    return IndexedFile(**values)  # type: ignore[arg-type]  # a field of another name is a TypeError
