"""From the table files of a Monolith checkpoint to a checkpoint that a job restores.

The files are read twice: once to find which ids occur and how new the data is, once to write.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.files import variables
from megalith.checkpoint.files.row_file import RowFile
from megalith.checkpoint.format import (
    FileKind,
    shard_suffix,
    table_file_name,
    variables_file_name,
)
from megalith.checkpoint.inspection.progress import NoProgress, ProgressDisplay
from megalith.checkpoint.layout import arrow_files, manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.monolith import entries as entry_files
from megalith.checkpoint.monolith.entries import Entries, EntryParser
from megalith.checkpoint.monolith.kernels import entries as kernels
from megalith.checkpoint.monolith.source import Source, TableRecords
from megalith.checkpoint.moving import new_directory
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.preparation import prepared
from megalith.checkpoint.storage.staging import staging_for
from megalith.errors import InvalidRequest, SaveFailed
from megalith.kernels.dtypes import I64, U8, Bools
from megalith.schema import TableConfig
from megalith.wire import routing

_MOST_FILES = 256  # that are written at once
_LAST_TIME = 2**32 - 1  # the newest update that a row can keep, Unix seconds
_MAX_AHEAD_S = 86400  # of data time before the wall clock, as a ps allows it too


@dataclass(slots=True)
class ImportedTable:
    """What became of the entries of a table.

    entries = rows + repeated + malformed + other_layout + not_finite. `begun_anew` and `undated`
    count rows that were imported: the first without the state of their optimizers, the second
    without the time of their last update, because the file has none or none that makes sense. One
    in the future is none: all other rows of the table would be expired by it.
    """

    name: str
    row_layout: str
    entries: int = 0
    rows: int = 0
    repeated: int = 0
    malformed: int = 0
    other_layout: int = 0
    not_finite: int = 0
    begun_anew: int = 0
    undated: int = 0

    @property
    def left_out(self) -> int:
        return self.entries - self.rows


@dataclass(frozen=True, slots=True)
class Imported:
    """The checkpoint that was made.

    `left_out` are files that it could not take over, by kind, and `removed` what was left of a
    command that was killed.
    """

    path: str
    source: str
    step: int
    tables: tuple[ImportedTable, ...]
    left_out: dict[str, int]
    removed: tuple[str, ...]


def import_tables(
    source_dir: Path,
    model_dir: Location,
    *,
    step: int | None = None,
    num_ps: int | None = None,
    segments: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    progress: ProgressDisplay | None = None,
) -> Imported:
    """Make the first checkpoint of `model_dir` of the tables in `source_dir`.

    `segments` gives the row layout of tables whose files do not show it, `names` other names of
    tables. All of it is there afterwards, or nothing.
    """
    source = Source.find(source_dir, step)
    directory = prepared(str(model_dir))
    removed = new_directory.make_empty(directory)

    job = _Import(
        source,
        segments or {},
        names or {},
        progress or NoProgress(),
    )
    return job.run(directory, num_ps, removed)


class _Table:
    """One table on its way: how its entries are parsed, and what was found in them."""

    def __init__(self, name: str, parser: EntryParser, last_time_s: int) -> None:
        """`last_time_s` is the latest time that makes sense."""
        self.parser = parser
        self._last_time_s = last_time_s
        self.report = ImportedTable(name, parser.layout.signature)

        self.data_time_s = 0
        self._ids: list[I64] = []
        self._is_kept = np.empty(0, np.bool_)
        self._written = 0  # usable entries that the second reading has met

    def scan(self, found: Entries) -> None:
        """The first reading."""
        report = self.report
        statuses = found.statuses
        report.entries += statuses.size
        report.malformed += _count(statuses, kernels.MALFORMED, kernels.NO_ID)
        report.other_layout += _count(
            statuses,
            kernels.OTHER_WIDTH,
            kernels.OTHER_OPTIMIZER,
        )

        is_usable = self._usable(found)
        num_usable = int(np.count_nonzero(is_usable))
        num_parsed = _count(statuses, kernels.GOOD, kernels.NO_STATE)
        report.not_finite += num_parsed - num_usable
        report.begun_anew += _count(statuses[is_usable], kernels.NO_STATE)

        times = found.times[is_usable]
        has_time = self._has_time(times)
        report.undated += int(np.count_nonzero(~has_time))

        newest_s = int(times[has_time].max(initial=0))
        self.data_time_s = max(self.data_time_s, newest_s)

        self._ids.append(found.ids[is_usable])

    def end_scan(self) -> None:
        """Of an id that occurs several times the last entry is kept, as Monolith would."""
        ids = np.concatenate(self._ids)
        self._ids = []

        order = np.argsort(ids, kind="stable")
        in_order = ids[order]
        is_replaced = in_order[:-1] == in_order[1:]
        replaced = order[:-1][is_replaced]

        self._is_kept = np.ones(ids.size, np.bool_)
        self._is_kept[replaced] = False

        report = self.report
        report.repeated = replaced.size
        report.rows = ids.size - replaced.size

        if report.entries and not ids.size:
            raise InvalidRequest(
                f"table {report.name}: none of its {report.entries} entries can be "
                f"imported as rows of {report.row_layout}: {report.other_layout} have "
                f"another layout, {report.malformed} are malformed, "
                f"{report.not_finite} are NaN or infinite"
            )

    def kept(self, found: Entries) -> Entries:
        """The second reading: the entries that become rows."""
        is_usable = self._usable(found)
        start = self._written
        end = start + int(np.count_nonzero(is_usable))
        self._written = end

        is_kept = is_usable.copy()
        is_kept[is_usable] = self._is_kept[start:end]

        times = found.times[is_kept]
        times[~self._has_time(times)] = 0

        return Entries(
            found.ids[is_kept],
            found.rows[is_kept],
            times,
            found.statuses[is_kept],
        )

    @staticmethod
    def _usable(found: Entries) -> Bools:
        is_parsed = np.isin(found.statuses, (kernels.GOOD, kernels.NO_STATE))
        is_finite = np.isfinite(found.rows).all(axis=1)

        usable: Bools = is_parsed & is_finite
        return usable

    def _has_time(self, times: I64) -> Bools:
        has_time: Bools = (times > 0) & (times <= self._last_time_s)
        return has_time


class _Import:
    """One import."""

    def __init__(
        self,
        source: Source,
        segments: Mapping[str, str],
        names: Mapping[str, str],
        progress: ProgressDisplay,
    ) -> None:
        self._source = source
        self._segments = segments
        self._names = names
        self._progress = progress
        self._tables: dict[str, _Table] = {}

        # Once: both readings have to agree on it
        self._last_time_s = min(int(time.time()) + _MAX_AHEAD_S, _LAST_TIME)

    def run(
        self, model_dir: Location, num_ps: int | None, removed: tuple[str, ...] = ()
    ) -> Imported:
        self._scan()

        most_parts = max(1, _MOST_FILES // len(self._tables))
        parts = num_ps or min(self._source.num_ps, most_parts)

        save_id = secrets.token_hex(4)
        work_id = new_directory.save_id_of(save_id)
        work = catalog.begin(model_dir, self._source.step, work_id)
        saved_at_s = time.time()

        try:
            with staging_for(work) as staging:
                files = self._write(staging.folder, save_id, parts)
                staging.finished(file.name for file in files)

            content = Manifest(
                step=self._source.step,
                num_ps=parts,
                saved_at_s=saved_at_s,
                files=tuple(files),
                save_id=save_id,
            )

            manifest.write(work, content)
            new_directory.check_held(work, save_id)
            path = catalog.publish(work, model_dir, self._source.step)
        except OSError as error:
            catalog.give_up(work)
            raise SaveFailed(f"{work} cannot be written: {error}; nothing was imported") from error
        except BaseException:
            catalog.give_up(work)
            raise

        catalog.record_latest(model_dir, path, saved_at_s)
        reports = tuple(self._tables[name].report for name in sorted(self._tables))
        return Imported(
            str(path),
            str(self._source.folder),
            self._source.step,
            reports,
            self._source.left_out,
            removed,
        )

    def _scan(self) -> None:
        self._progress.begin("reading Monolith's files", self._source.bytes)
        for part in self._parts():
            table = self._table_of(part)
            entries = table.parser.parse(part.records)
            table.scan(entries)

        for asked in (*self._segments, *self._names):
            if asked not in self._source.tables_seen:
                known = ", ".join(sorted(self._source.tables_seen))
                raise InvalidRequest(f"there is no table {asked!r} in the files; there are {known}")

        self._check_names()
        for table in self._tables.values():
            table.end_scan()

        if not self._tables:
            raise InvalidRequest(f"the tables in {self._source.folder} have no entries")

    def _check_names(self) -> None:
        """InvalidRequest if two tables get one name: the rows of one would replace the other's."""
        old_names: dict[str, str] = {}
        for old in sorted(self._source.tables_seen):
            new = self._names.get(old, old)
            if new in old_names:
                raise InvalidRequest(
                    f"--rename: tables {old_names[new]!r} and {old!r} would both be called {new!r}"
                )

            old_names[new] = old

    def _parts(self) -> Iterator[TableRecords]:
        return self._source.read(self._progress)

    def _table_of(self, part: TableRecords) -> _Table:
        name = self._names.get(part.table, part.table)
        table = self._tables.get(name)
        if table is None:
            stated = self._segments.get(part.table)
            if stated is not None:
                segments = entry_files.segments_of(stated)
            else:
                segments = entry_files.segments_in(part.records.of(0), part.table)

            parser = EntryParser(TableConfig(name, segments))
            table = _Table(name, parser, self._last_time_s)
            self._tables[name] = table

        return table

    def _write(self, work: Path, save_id: str, num_ps: int) -> list[ShardFile]:
        """The files that so many parameter servers would have saved."""
        owners = routing.even_owners(num_ps)
        suffixes = [shard_suffix(index, num_ps, save_id) for index in range(num_ps)]
        files: dict[str, list[RowFile]] = {}

        with ExitStack() as closing:
            for number, name in enumerate(sorted(self._tables)):
                table = self._tables[name]
                files[name] = []

                for suffix in suffixes:
                    file_name = table_file_name(FileKind.TABLE, number, name, suffix)
                    file = self._row_file(table, work, file_name)
                    files[name].append(closing.enter_context(file))

            self._progress.begin("writing rows", self._source.bytes)
            for part in self._parts():
                table = self._table_of(part)
                entries = table.parser.parse(part.records)
                rows = table.kept(entries)

                buckets = routing.buckets_of(rows.ids)
                owner = owners[buckets]
                for index, file in enumerate(files[table.report.name]):
                    is_its = owner == index
                    if not is_its.any():
                        continue

                    file.add(
                        rows.ids[is_its],
                        rows.rows[is_its],
                        rows.times[is_its],
                    )

        written = []
        for index, suffix in enumerate(suffixes):
            for by_index in files.values():
                written.append(by_index[index].written())

            no_variables = variables.write([], work, variables_file_name(suffix))
            owned = arrow_files.ranges_of(owners == index)
            written.append(replace(no_variables, buckets=owned))

        return written

    def _row_file(self, table: _Table, work: Path, name: str) -> RowFile:
        parser = table.parser
        return RowFile(parser.config, parser.layout, table.data_time_s, work, name)


def _count(statuses: U8, *wanted: int) -> int:
    return int(np.count_nonzero(np.isin(statuses, wanted)))
