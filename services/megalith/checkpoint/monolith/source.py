"""Where the tables of a Monolith checkpoint are: which folder, which files, which step.

model.ckpt-120.assets/
    MonolithHashTable_<table>_<ps>-00000-of-00001             one table, TFRecord
    MonolithMultiHashTable_<ps>-00000-of-00001                all tables of a ps, with Snappy
    MonolithMultiHashTable_<ps>.meta-00000-of-00001           their names and numbers of entries
    hash_filter_<ps>-00000-of-00007                           admission filters
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from megalith.checkpoint.directory import listing
from megalith.checkpoint.inspection.progress import ProgressDisplay
from megalith.checkpoint.monolith.metadata import TableCount, counts_in
from megalith.checkpoint.monolith.record_files import RecordFile, Records, file_sets
from megalith.errors import CheckpointDamaged, CheckpointNotFound

_ONE = "MonolithHashTable_"
_MANY = "MonolithMultiHashTable_"
_META = ".meta"
_FILTER = "hash_filter_"
_ASSETS = ".assets"
_MERGED = re.compile(r"(?P<name>[0-9a-f]{32})(_(?P<ps>\d+))?")
_OTHER = re.compile(r"(?P<name>.+)_(?P<ps>\d+)")


class TableRecords(NamedTuple):
    """Some entries of a table."""

    table: str
    records: Records


@dataclass(slots=True)
class Source:
    """The files of one checkpoint of Monolith's.

    `left_out` counts files that hold something else than rows, by what they hold.
    """

    folder: Path
    step: int
    tables: dict[str, list[Path]] = field(default_factory=dict)  # files of one table each
    shards: list[tuple[Path, Path]] = field(default_factory=list)  # files of many, and of names
    num_ps: int = 1
    left_out: dict[str, int] = field(default_factory=dict)
    tables_seen: set[str] = field(default_factory=set)  # by name, after the files were read

    @classmethod
    def find(cls, directory: Path, step: int | None = None) -> "Source":
        """The checkpoint in a folder of table files, or the newest of a model directory."""
        folder = _folder_of_tables(directory)
        if step is None:
            step = _step_of(folder)

        source = cls(folder, step)
        sets = file_sets(folder)
        servers = set()
        num_filters = 0

        for base, paths in sorted(sets.items()):
            if base.startswith(_MANY) and not base.endswith(_META):
                names = sets.get(f"{base}{_META}")
                if names is None or len(names) != len(paths):
                    raise CheckpointDamaged(
                        f"{folder / base}-* has {len(paths)} files, but "
                        f"{len(names or ())} files {base}{_META}-* that name its tables"
                    )

                source.shards += zip(paths, names, strict=True)
                servers.add(base.removeprefix(_MANY))

            elif base.startswith(_ONE):
                table, ps = _table_and_ps(base.removeprefix(_ONE))
                source.tables.setdefault(table, []).extend(paths)
                servers.add(ps)

            elif base.startswith(_FILTER):
                num_filters += len(paths)

        if not source.tables and not source.shards:
            raise CheckpointNotFound(
                f"{folder} has no table files of Monolith's ({_ONE}* or {_MANY}*)"
            )

        if num_filters:
            source.left_out["admission filters"] = num_filters

        dense = _dense_files(folder)
        if dense:
            source.left_out["dense variables"] = dense

        source.num_ps = len(servers)
        return source

    @property
    def bytes(self) -> int:
        files = [data for data, _ in self.shards]
        for paths in self.tables.values():
            files += paths

        return sum(path.stat().st_size for path in files)

    def read(self, progress: ProgressDisplay) -> Iterator[TableRecords]:
        """All entries, table by table within a file."""
        for table, paths in self.tables.items():
            self.tables_seen.add(table)
            for path in paths:
                file = RecordFile(path)

                while (records := file.read()) is not None:
                    yield TableRecords(table, records)

                progress.add(path.stat().st_size)

        for data, names in self.shards:
            file = RecordFile(data, is_snappy=True)
            for count in counts_in(names):
                self.tables_seen.add(count.table)
                yield from _take(file, count, data, names)

            if file.read() is not None:
                raise CheckpointDamaged(f"{data} has more entries than {names.name} says")

            progress.add(data.stat().st_size)


def _take(file: RecordFile, count: TableCount, data: Path, names: Path) -> Iterator[TableRecords]:
    left = count.entries
    while left:
        records = file.read(left)
        if records is None:
            raise CheckpointDamaged(
                f"{data} ends {left} entries before the {count.entries} of table {count.table} "
                f"that {names.name} says"
            )

        left -= records.begins.size
        yield TableRecords(count.table, records)


def _folder_of_tables(directory: Path) -> Path:
    if not directory.is_dir():
        raise CheckpointNotFound(f"{directory} is no directory")

    if any(directory.glob(f"{_ONE}*")) or any(directory.glob(f"{_MANY}*")):
        return directory

    newest = listing.read(directory).newest
    newest_folder = directory / f"{newest}{_ASSETS}"
    if newest and newest_folder.is_dir():
        return newest_folder

    candidates = directory.glob(f"*{_ASSETS}")
    folders = sorted(path for path in candidates if path.is_dir())
    if not folders:
        raise CheckpointNotFound(
            f"{directory} has no table files of Monolith's, and no folder *{_ASSETS} with some"
        )

    if len(folders) > 1:
        found = ", ".join(path.name for path in folders)
        raise CheckpointNotFound(
            f"{directory} has several folders of table files: {found}; name one of them"
        )

    return folders[0]


def _step_of(folder: Path) -> int:
    """The number after the last '-', as Monolith reads it; 0 if there is none."""
    checkpoint = folder.name.removesuffix(_ASSETS)
    _, _, step = checkpoint.rpartition("-")
    return int(step) if step.isdigit() else 0


def _table_and_ps(suffix: str) -> tuple[str, str]:
    parts = _MERGED.fullmatch(suffix) or _OTHER.fullmatch(suffix)
    if parts is None:
        return suffix, ""

    return parts["name"], parts["ps"] or ""


def _dense_files(folder: Path) -> int:
    """Files of TensorFlow's beside the folder: model.ckpt-120.index, .data-00000-of-00001."""
    if not folder.name.endswith(_ASSETS):
        return 0

    prefix = folder.name.removesuffix(_ASSETS)
    model_dir = folder.parent
    found = list(model_dir.glob(f"{prefix}.index"))

    found += model_dir.glob(f"{prefix}.data-*")
    return len(found)
