"""Loading the rows of tables out of a checkpoint: all of a ps's buckets, or an error."""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.files import dropped
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.files.tables import Header, RowBatch
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, blocks
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.restoring import own_rows, read_ahead
from megalith.checkpoint.restoring.read_ahead import ReadAhead
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.parallel import in_parallel, threads
from megalith.engine.kernels import ownership
from megalith.engine.table.checks import finite_mask, frozen
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import CheckpointDamaged, LimitExceeded
from megalith.kernels.dtypes import F32, I64, Bools
from megalith.kernels.finite import is_finite
from megalith.schema import TableConfig
from megalith.wire import routing

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Reader = Callable[[], Iterable[RowBatch]]

_MOST_THREADS = 4  # that load files, and as many that load blocks; each has one in memory
_PROGRESS_S = 10.0  # between two lines about a long restore


def load_tables(
    chain: Chain, mine: Bools, over_budget: bool
) -> tuple[dict[str, EmbeddingTable], int]:
    """The tables by name with their rows of the buckets in `mine`, and how many rows were expired.

    `restore_shard` says what happens to rows that a memory budget has no room for.
    """
    with threads("blocks", _num_threads()) as pool:
        loading = _Loading(chain, mine, over_budget, pool)
        expired = loading.load_base()

    with threads("ahead", read_ahead.THREADS) as pool:
        loading.load_increments(pool)

    for name, table in loading.tables.items():
        table.reconfigure(loading.configs[name])

    if chain.increments:
        expired = loading.drop_expired()  # by the settings of the last increment

    for name, table in loading.tables.items():
        config = loading.configs[name]
        loading.check_budget(table)
        if config.memory_budget_bytes and table.nbytes > config.memory_budget_bytes:
            logger.warning(
                "table %s takes %d bytes, its memory budget is %d: "
                "it takes no new ids until there is room",
                name,
                table.nbytes,
                config.memory_budget_bytes,
            )

    return loading.tables, expired


class _Loading:
    """One restore of all tables. Tables guard their own rows.

    Each file has a thread that waits for its blocks, which the threads of `pool` load.

    With increments, rows that are expired are dropped at the end: an increment may have given one
    of them a new time. And the memory budget counts at the end: a full table that has dropped rows
    and made others would not have room for all of them on the way there.
    """

    def __init__(
        self, chain: Chain, mine: Bools, over_budget: bool, pool: ThreadPoolExecutor
    ) -> None:
        self._chain = chain
        self._pool = pool
        self._directory = chain.directory
        self._has_increments = bool(chain.increments)
        self._mine = mine
        self._owned = frozen(mine.astype(np.uint16))  # as if the buckets were those of server 1
        self._over_budget = over_budget
        files = [file for file in chain.base.files if file.kind == FileKind.TABLE]
        self._headers = _headers_of(chain)
        headers = {file.name: self._headers[self._directory / file.name] for file in files}
        self._data_times = table_files.newest(headers, files)
        self._note_data_times()

        self.configs: dict[str, TableConfig] = {}
        for file in files:
            self.configs.setdefault(file.table, headers[file.name].config)  # the first file's

        self._needed = []

        for file in files:
            # A file without a row of this server is another server's to check.
            if self._is_needed(file) or not file.rows:
                self._needed.append(file)

        self._expected_rows: Counter[str] = Counter()
        for file in self._needed:
            self._expected_rows[file.table] += _expected_rows(file, mine)

        self.tables: dict[str, EmbeddingTable] = {}
        for name in self.configs:
            self._make_table(name)

        self._sources = Counter(file.table for file in self._needed if file.rows)
        num_rows = sum(file.rows for file in self._needed)
        self._progress = _Progress(len(self._needed), num_rows)

    def _make_table(self, name: str) -> None:
        config = self.configs[name]
        is_unbounded = self._over_budget or self._has_increments
        wanted = _without_budget(config) if is_unbounded else config
        table = EmbeddingTable(wanted)
        table.expect(self._expected_rows[name])
        self.tables[name] = table

    def _note_data_times(self) -> None:
        files = self._chain.files_of(FileKind.DROPPED)
        found = in_parallel(lambda each: dropped.data_time_s(*each), files, "data times")
        for (_, file), time_s in zip(files, found, strict=True):
            known_s = self._data_times.get(file.table, 0)
            self._data_times[file.table] = max(known_s, time_s)

    def load_base(self) -> int:
        """Load every file of the checkpoint that is needed; how many rows were expired."""
        return sum(_load_each(self._load, self._needed))

    def load_increments(self, pool: ThreadPoolExecutor) -> None:
        """Load them one after the other; the threads of `pool` read the next ones meanwhile."""
        changed = self._needed_of(FileKind.TABLE)
        gone = self._needed_of(FileKind.DROPPED)
        rows = ReadAhead(changed, self._all_batches, pool, read_ahead.MOST_BYTES)
        dropped_ids = ReadAhead(gone, dropped.read, pool, read_ahead.MOST_BYTES)
        for increment in self._chain.increments:
            self._load_increment(increment, rows, dropped_ids)

    def _needed_of(self, kind: FileKind) -> list[tuple[Location, ShardFile]]:
        """Files of increments with something for this server, in their order."""
        found = []
        for increment in self._chain.increments:
            for file in increment.manifest.files:
                if file.kind is kind and file.rows and self._is_needed(file):
                    found.append((increment.directory, file))

        return found

    def _load_increment(
        self,
        increment: Increment,
        rows: ReadAhead[list[RowBatch]],
        dropped_ids: ReadAhead[I64],
    ) -> None:
        """Put the changed rows in, and take the dropped ones out."""
        directory = increment.directory
        files = increment.manifest.files

        changed = [file for file in files if file.kind is FileKind.TABLE]
        for file in changed:
            header = self._headers[directory / file.name]
            self.configs[file.table] = header.config
            if file.table not in self.tables:
                self._make_table(file.table)

        needed = [file for file in changed if self._is_needed(file)]
        _load_each(lambda file: self._load_changes(directory, file, rows), needed)

        gone = [file for file in files if file.kind is FileKind.DROPPED]
        _load_each(lambda file: self._drop(directory, file, dropped_ids), gone)

    def _is_needed(self, file: ShardFile) -> bool:
        buckets = arrow_files.buckets_of(file)
        is_mine = buckets & self._mine
        return bool(is_mine.any())

    def _load_changes(
        self, directory: Location, file: ShardFile, rows: ReadAhead[list[RowBatch]]
    ) -> None:
        table = self.tables[file.table]
        signature = RowLayout(self.configs[file.table]).signature
        refused = 0
        batches: Iterable[RowBatch] | None = rows.take(directory, file)
        if batches is None:
            batches = self._batches(directory, file)

        for batch in batches:
            own = own_rows.joined(batch, self._mine)
            data_time_s = self._data_times[file.table]
            result = table.load(own.ids, own.rows, own.times, signature, data_time_s)
            refused += result.refused

        if refused:
            raise _no_room(table, refused, file.rows, directory / file.name)

    def _batches(self, directory: Location, file: ShardFile) -> Iterator[RowBatch]:
        """In the order of the file: the last of equal ids counts."""
        for read in self._readers(directory, file):
            yield from read()

    def _all_batches(self, directory: Location, file: ShardFile) -> list[RowBatch]:
        return list(self._batches(directory, file))

    def _drop(self, directory: Location, file: ShardFile, dropped_ids: ReadAhead[I64]) -> None:
        if not file.rows or not self._is_needed(file):
            return

        ids = dropped_ids.take(directory, file)
        if ids is None:
            ids = dropped.read(directory, file)

        is_mine = self._mine[routing.buckets_of(ids)]
        self.tables[file.table].erase(frozen(ids[is_mine]))

    def drop_expired(self) -> int:
        """Drop the rows that are expired after the last increment; how many."""
        expired = 0
        for table in self.tables.values():
            if table.config.max_expire_share == 1:
                expired += table.expire()

        return expired

    def check_budget(self, table: EmbeddingTable) -> None:
        """LimitExceeded if several servers held more rows than the budget of one has room for.

        What one server held, this one may hold too.
        """
        num_refused = table.num_over_budget
        if self._over_budget or not num_refused or not self._has_increments:
            return

        num_servers = 0
        for file in self._chain.last.files:
            # Each server writes one of these for each of its tables, about all of its buckets
            if file.kind is FileKind.DROPPED and file.table == table.config.name:
                num_servers += self._is_needed(file)

        if num_servers > 1:
            raise _no_room(table, num_refused, len(table), self._directory)

    def _load(self, file: ShardFile) -> int:
        is_too_small = False
        try:
            expired = self._load_into(self.tables[file.table], file)
        except LimitExceeded:
            is_too_small = True
            if self._sources[file.table] > 1:
                raise

        if is_too_small:
            # One server held all of these rows, so this one may. No other file has any for the
            # table: begin it anew. Not in the clause above, where the error keeps the first table.
            without_budget = _without_budget(self.configs[file.table])
            self.tables[file.table] = EmbeddingTable(without_budget)
            expired = self._load_into(self.tables[file.table], file)

        self._progress.end_file()
        return expired

    def _load_into(self, table: EmbeddingTable, file: ShardFile) -> int:
        """Load a file's rows of the buckets in `mine`, every one of them; how many were expired."""
        signature = RowLayout(self._headers[self._directory / file.name].config).signature
        counts = _Counts()

        def load(read: _Reader) -> None:
            for batch in read():
                counts.add(self._load_batch(table, file, batch, signature))
                self._progress.add(batch.ids.size)

        for _ in self._pool.map(load, self._readers(self._directory, file)):
            pass  # the first error is raised here

        counts.check(table, self._directory / file.name)
        return counts.expired

    def _load_batch(
        self, table: EmbeddingTable, file: ShardFile, batch: RowBatch, signature: str
    ) -> "_Counts":
        data_time_s = self._data_times.get(file.table)
        # early versions wrote neither data times nor expired rows
        drop_expired = data_time_s is not None and not self._has_increments

        if ownership.all_owned(frozen(batch.ids), self._owned, 1) and _is_finite(batch):
            loaded = table.load_new(*batch, signature, data_time_s, drop_expired=drop_expired)
            if loaded is not None:
                return _Counts(batch.ids.size, loaded.created, loaded.refused)

        rows = own_rows.joined(batch, self._mine)
        spoiled_states, spoiled_weights = _begin_spoiled_states(rows.rows, table.layout)
        result = table.load(
            rows.ids,
            rows.rows,
            rows.times,
            signature,
            data_time_s,
            drop_expired=drop_expired,
        )

        return _Counts(
            found=rows.ids.size,
            created=result.created,
            refused=result.refused,
            expired=result.expired,
            spoiled_states=spoiled_states,
            spoiled_weights=spoiled_weights,
        )

    def _readers(self, directory: Location, file: ShardFile) -> list["_Reader"]:
        """What reads the rows of a file: one for each block with rows of `mine`.

        The whole file is one in early versions, which have no blocks.
        """
        found = blocks.blocks_of(file)
        if not found:
            return [partial(table_files.row_batches, directory, file)]

        schema = table_files.schema_of(directory, file)
        blocks.read(directory, file, found[-1])  # its end: nobody needs it here, but it is checked
        return [
            partial(table_files.block_rows, directory, file, schema, block)
            for block in found
            if block.is_about(self._mine)
        ]


def _headers_of(chain: Chain) -> dict[Location, Header]:
    """What the files of tables say of them, by path."""
    files = chain.files_of(FileKind.TABLE)
    headers = in_parallel(lambda each: table_files.header(*each), files, "headers")

    found = {}
    for (directory, file), header in zip(files, headers, strict=True):
        found[directory / file.name] = header

    return found


def _expected_rows(file: ShardFile, mine: Bools) -> int:
    """About how many rows a file has of the buckets in `mine`: ids are spread over buckets."""
    found = blocks.blocks_of(file)
    if not found:
        buckets = arrow_files.buckets_of(file)
        num_mine = int(np.count_nonzero(buckets & mine))
        num_buckets = int(np.count_nonzero(buckets))
        return file.rows * num_mine // max(1, num_buckets)

    rows = 0.0
    for block in found:
        if block.rows:
            share = mine[block.first : block.last + 1].mean()
            rows += block.rows * float(share)

    return int(rows)


@dataclass(slots=True)
class _Counts:
    """What became of a file's rows of this ps's buckets. Several threads add to it."""

    found: int = 0
    created: int = 0
    refused: int = 0
    expired: int = 0
    spoiled_states: int = 0
    spoiled_weights: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, others: "_Counts") -> None:
        with self._lock:
            self.found += others.found
            self.created += others.created
            self.refused += others.refused
            self.expired += others.expired
            self.spoiled_states += others.spoiled_states
            self.spoiled_weights += others.spoiled_weights

    def check(self, table: EmbeddingTable, path: Location) -> None:
        """Raise unless all of them came into the table or were expired; say what was spoiled."""
        name = table.config.name
        if self.spoiled_states:
            logger.warning(
                "optimizer state is not finite, it begins anew: table=%s rows=%d file=%s",
                name,
                self.spoiled_states,
                path,
            )

        if self.spoiled_weights:
            logger.warning(
                "weights are not finite, they learn nothing until they are assigned or erased: "
                "table=%s rows=%d file=%s",
                name,
                self.spoiled_weights,
                path,
            )

        if self.refused:
            raise _no_room(table, self.refused, self.found, path)

        too_many = self.found - self.created - self.expired
        if too_many:
            raise CheckpointDamaged(
                f"{path} has {self.found} rows for this ps, {self.created} are new and "
                f"{self.expired} expired: {too_many} ids are in another file of table {name} too"
            )


def _load_each(load: Callable[[ShardFile], T], files: list[ShardFile]) -> list[T]:
    """Load files on a few threads; the first error ends it."""
    return in_parallel(load, files, "restore", _num_threads())


def _num_threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)


def _no_room(table: EmbeddingTable, refused: int, found: int, path: Location) -> LimitExceeded:
    return LimitExceeded(
        f"table {table.config.name}: {refused} of the {found} rows that this ps needs of "
        f"{path} find no room; it holds {len(table)} rows in a memory_budget_bytes of "
        f"{table.config.memory_budget_bytes}; start more parameter servers, or give them "
        "--restore-over-budget"
    )


def _without_budget(config: TableConfig) -> TableConfig:
    return replace(config, memory_budget_bytes=0)


def _is_finite(batch: RowBatch) -> bool:
    return is_finite(frozen(batch.embeddings.reshape(-1))) and is_finite(
        frozen(batch.states.reshape(-1))
    )


def _begin_spoiled_states(rows: F32, layout: RowLayout) -> tuple[int, int]:
    """Give rows whose optimizer state is not finite the state of a new row.

    Returns how many there were, and how many rows have weights that are not finite. Early versions
    saved such rows. Every update of theirs would be undone, because the row is not finite after it.
    """
    is_finite = finite_mask(frozen(rows))
    if is_finite is None:
        return 0, 0

    suspects = np.flatnonzero(~is_finite)
    weights = rows[suspects, : layout.dim]
    states = rows[suspects, layout.dim :]
    has_spoiled_weights = ~np.isfinite(weights).all(axis=1)
    has_spoiled_state = ~np.isfinite(states).all(axis=1)

    state_of_a_new_row = layout.template[layout.dim :]
    rows[suspects[has_spoiled_state], layout.dim :] = state_of_a_new_row
    num_states = int(np.count_nonzero(has_spoiled_state))
    num_weights = int(np.count_nonzero(has_spoiled_weights))
    return num_states, num_weights


class _Progress:
    """Says from time to time how far a restore is.

    The lock guards its counts, which several threads add to.
    """

    def __init__(
        self, num_files: int, num_rows: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_files = num_files
        self._num_rows = num_rows
        self._clock = clock
        self._lock = threading.Lock()
        self._files = 0
        self._rows = 0
        self._said_at = clock()

    def end_file(self) -> None:
        with self._lock:
            self._files += 1

    def add(self, rows: int) -> None:
        with self._lock:
            self._rows += rows
            if self._clock() - self._said_at < _PROGRESS_S:
                return

            self._said_at = self._clock()
            num_rows = self._rows
            num_files = self._files

        logger.info(
            "restoring: %d of %d rows read, %d of %d files done",
            num_rows,
            self._num_rows,
            num_files,
            self._num_files,
        )
