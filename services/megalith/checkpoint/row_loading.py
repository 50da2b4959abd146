"""Loading the rows of tables out of a checkpoint: all of a ps's buckets, or an error."""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from megalith.checkpoint import arrow_files
from megalith.checkpoint import tables as table_files
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.manifest import Manifest, ShardFile
from megalith.engine.table.checks import finite_mask, frozen
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import CheckpointDamaged, LimitExceeded
from megalith.kernels.dtypes import F32, Bools
from megalith.schema import TableConfig
from megalith.wire import routing

logger = logging.getLogger(__name__)

_MOST_THREADS = 4  # that check and load files; each has one record batch in memory
_PROGRESS_S = 10.0  # between two lines about a long restore


def load_tables(
    content: Manifest, directory: Path, mine: Bools, over_budget: bool
) -> tuple[dict[str, EmbeddingTable], int]:
    """The tables by name with their rows of the buckets in `mine`, and how many rows were expired.

    `restore_shard` says what happens to rows that a memory budget has no room for.
    """
    files = [file for file in content.files if file.kind == FileKind.TABLE]
    loading = _Loading(directory, files, mine, over_budget)
    expired = loading.load_all()

    for name, table in loading.tables.items():
        config = loading.configs[name]
        table.reconfigure(config)
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
    """One restore of all tables. Each file is loaded by one thread; tables guard their own rows."""

    def __init__(
        self, directory: Path, files: list[ShardFile], mine: Bools, over_budget: bool
    ) -> None:
        self._directory = directory
        self._mine = mine
        self._headers = {file.name: table_files.header(directory, file) for file in files}
        self._data_times = table_files.newest(self._headers, files)
        self.configs: dict[str, TableConfig] = {}
        for file in files:
            self.configs.setdefault(file.table, self._headers[file.name].config)  # the first file's

        self.tables: dict[str, EmbeddingTable] = {}
        for name, config in self.configs.items():
            wanted = _without_budget(config) if over_budget else config
            self.tables[name] = EmbeddingTable(wanted)

        self._needed = []

        for file in files:
            # A file without a row of this server is another server's to check.
            buckets = arrow_files.buckets_of(file)
            is_mine = (buckets & mine).any()
            if is_mine or not file.rows:
                self._needed.append(file)

        self._sources = Counter(file.table for file in self._needed if file.rows)
        num_rows = sum(file.rows for file in self._needed)
        self._progress = _Progress(len(self._needed), num_rows)

    def load_all(self) -> int:
        """Load every file that is needed; how many rows were expired."""
        num_threads = min(_MOST_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(num_threads, "restore") as pool:
            try:
                return sum(pool.map(self._load, self._needed))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

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
        signature = RowLayout(self._headers[file.name].config).signature
        data_time_s = self._data_times.get(file.table)
        counts = _Counts()

        for batch in table_files.row_batches(self._directory, file):
            is_mine = self._mine[routing.buckets_of(batch.ids)]
            rows = np.concatenate([batch.embeddings[is_mine], batch.states[is_mine]], axis=1)
            spoiled_states, spoiled_weights = _begin_spoiled_states(rows, table.layout)
            result = table.load(
                batch.ids[is_mine],
                rows,
                batch.times[is_mine],
                signature,
                data_time_s,
                # early versions wrote neither data times nor expired rows
                drop_expired=data_time_s is not None,
            )

            counts.found += len(rows)
            counts.created += result.created
            counts.refused += result.refused
            counts.expired += result.expired
            counts.spoiled_states += spoiled_states
            counts.spoiled_weights += spoiled_weights
            self._progress.add(batch.ids.size)

        counts.check(table, self._directory / file.name)
        return counts.expired


@dataclass(slots=True)
class _Counts:
    """What became of a file's rows of this ps's buckets."""

    found: int = 0
    created: int = 0
    refused: int = 0
    expired: int = 0
    spoiled_states: int = 0
    spoiled_weights: int = 0

    def check(self, table: EmbeddingTable, path: Path) -> None:
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
            raise LimitExceeded(
                f"table {name}: {self.refused} of the {self.found} rows that this ps needs of "
                f"{path} find no room; it holds {len(table)} rows in a memory_budget_bytes of "
                f"{table.config.memory_budget_bytes}; start more parameter servers, or give them "
                "--restore-over-budget"
            )

        too_many = self.found - self.created - self.expired
        if too_many:
            raise CheckpointDamaged(
                f"{path} has {self.found} rows for this ps, {self.created} are new and "
                f"{self.expired} expired: {too_many} ids are in another file of table {name} too"
            )


def _without_budget(config: TableConfig) -> TableConfig:
    return replace(config, memory_budget_bytes=0)


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
