"""A ps's part of a checkpoint: Arrow files for the rows, filter and touched keys of each table, one for its variables.

Any Arrow reader opens them; see table_files.py, filter_files.py and variable_files.py. The manifest says which buckets
a file is about. A ps restores the rows of its own buckets, whatever the number of servers that wrote them, and reads
only the files that have some.
"""

import contextlib
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.ps import arrow_files, filter_files, table_files, variable_files
from megalith.ps.batch import finite_mask, frozen
from megalith.ps.counting_filter import CountingFilter
from megalith.ps.expiry import Expiry, dated
from megalith.ps.filter_union import State, union_of
from megalith.ps.kernels.dtypes import F32, I64, Bools
from megalith.ps.row_layout import RowLayout
from megalith.ps.serving import ServingTable
from megalith.ps.store import Store
from megalith.ps.table import EmbeddingTable
from megalith.ps.variable import Variable
from megalith.ps.variable_files import SavedVariable
from megalith.runtime import manifest
from megalith.runtime.manifest import Manifest, Restored, ShardFile
from megalith.wire import routing
from megalith.wire.errors import CheckpointDamaged, LimitExceeded, SaveFailed
from megalith.wire.schema import TableConfig

logger = logging.getLogger(__name__)

_MOST_THREADS = 4  # that check and load files; each has one record batch in memory
_PROGRESS_S = 10.0  # between two lines about a long restore
_KINDS = ("table", filter_files.FILTER, filter_files.TOUCHED, "variables")


class Shard(NamedTuple):
    """What one server wrote: its files, and the keys of the parts of large variables that are in them."""

    files: list[ShardFile]
    parts: list[str]


def write_shard(store: Store, directory: Path, save_id: str, index: int, num_ps: int) -> Shard:
    """Write this server's tables and variables; returns what was written.

    Whatever goes wrong, none of the files stays. That goes for a directory that was removed meanwhile too, because the
    save took too long or another ps failed.
    """
    suffix = f"ps-{index:05}-of-{num_ps:05}-{save_id}.arrow"
    try:
        shard = _write_files(store, directory, suffix)
        if missing := [file.name for file in shard.files if not (directory / file.name).exists()]:
            raise SaveFailed(f"the save was given up: {directory} has lost {missing[0]}")
    except BaseException:
        for path in directory.glob(f"*-{suffix}"):
            with contextlib.suppress(OSError):  # what went wrong is said, not what came of it
                path.unlink()
        raise
    return shard


def _write_files(store: Store, directory: Path, suffix: str) -> Shard:
    files = []
    for number, table in enumerate(store.tables()):
        # The number, not the readable part, keeps the files of two tables apart.
        end = f"{number:04}-{_readable(table.config.name)}-{suffix}"
        files.append(table_files.write(table, directory, f"table-{end}"))
        files += _write_memory(table, store.buckets(), directory, end)
    variables = store.variables()  # once: the parts that are named are those that are written
    variables_file = variable_files.write(variables, directory, f"variables-{suffix}")
    files.append(replace(variables_file, buckets=arrow_files.ranges_of(store.buckets())))
    return Shard(files, [variable.config.key for variable in variables if variable.config.part])


def _write_memory(
    table: EmbeddingTable, buckets: Bools, directory: Path, end: str
) -> list[ShardFile]:
    """Touched keys and filter of a table, as far as it has them.

    They come after the rows: what was counted or touched meanwhile is in them, if not in the rows, so that no id has to
    be seen more often after a restart than before.
    """
    name, files = table.config.name, []
    if table.touched is not None:
        forgotten = table.stats().touched_overflow
        files.append(
            filter_files.write_touched(table.touched, forgotten, name, directory, f"touched-{end}")
        )
    if isinstance(table.admission, CountingFilter):
        files.append(
            filter_files.write_filter(table.admission, name, buckets, directory, f"filter-{end}")
        )
    about = arrow_files.ranges_of(buckets)
    return [replace(file, buckets=about) for file in files]


def restore_shard(
    store: Store,
    directory: Path,
    owners: NDArray[np.uint16],
    index: int,
    *,
    over_budget: bool = False,
) -> Restored:
    """Load the rows and variables whose buckets `index` owns: all of them, or an error and nothing.

    A file is verified against the manifest before a row of it is used, and so is the number of its rows. Rows that are
    expired at their table's data time are dropped and counted. Rows that a memory budget has no room for are a
    LimitExceeded, unless `over_budget`, or unless one server held them all when it saved, because its budget had been
    lowered since: then the table takes them all, and no new ids until there is room.
    """
    started = time.monotonic()
    content = manifest.read(directory)
    for file in content.files:
        manifest.check_size(directory, file)
        if file.kind not in _KINDS:
            raise CheckpointDamaged(
                f"{file.name} is of unknown kind {file.kind!r}: written by a newer version"
            )
    tables, expired = _restore_tables(content, directory, owners == index, over_budget)
    _restore_memory(content, directory, owners == index, tables)
    variables = _restore_variables(content, directory, owners, index)
    for table in tables.values():
        store.adopt(table=table)
    for variable in variables:
        store.adopt(variable=variable)
    restored = Restored(
        path=str(directory),
        step=content.step,
        rows=sum(len(table) for table in tables.values()),
        expired=expired,
        seconds=time.monotonic() - started,
        tables=len(tables),
        variables=len(variables),
    )
    logger.info(
        "restored path=%s rows=%d expired=%d left_out=%d seconds=%.1f",
        restored.path,
        restored.rows,
        restored.expired,
        restored.left_out,
        restored.seconds,
    )
    return restored


def _restore_tables(
    content: Manifest, directory: Path, mine: Bools, over_budget: bool
) -> tuple[dict[str, EmbeddingTable], int]:
    """The tables by name with their rows of the buckets in `mine`, and how many rows were expired."""
    files = [file for file in content.files if file.kind == "table"]
    headers = {file.name: table_files.header(directory, file) for file in files}
    data_times = table_files.newest(headers, files)
    configs = {
        file.table: headers[file.name].config for file in reversed(files)
    }  # the first file's
    tables = {}
    for name, config in configs.items():
        tables[name] = EmbeddingTable(_without_budget(config) if over_budget else config)
    # A file without a row of this server is another server's to check.
    needed = [
        file for file in files if (arrow_files.buckets_of(file) & mine).any() or not file.rows
    ]
    sources = Counter(file.table for file in needed if file.rows)
    progress = _Progress(len(needed), sum(file.rows for file in needed))

    def load_into(table: EmbeddingTable, file: ShardFile) -> int:
        signature = RowLayout(headers[file.name].config).signature
        return _load_rows(
            table, directory, file, signature, mine, data_times.get(file.table), progress
        )

    def load(file: ShardFile) -> int:
        try:
            expired = load_into(tables[file.table], file)
        except LimitExceeded:
            if sources[file.table] > 1:
                raise
            # One server held all of these rows, so this one may. No other file has any for the table: begin it anew.
            tables[file.table] = EmbeddingTable(_without_budget(configs[file.table]))
            expired = load_into(tables[file.table], file)
        progress.end_file()
        return expired

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "restore") as pool:
        try:
            expired = sum(pool.map(load, needed))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for name, table in tables.items():
        table.reconfigure(configs[name])
        budget = configs[name].memory_budget_bytes
        if budget and table.nbytes > budget:
            logger.warning(
                "table %s takes %d bytes, its memory budget is %d: it takes no new ids until there is room",
                name,
                table.nbytes,
                budget,
            )
    return tables, expired


def _without_budget(config: TableConfig) -> TableConfig:
    return replace(config, memory_budget_bytes=0)


def _load_rows(
    table: EmbeddingTable,
    directory: Path,
    file: ShardFile,
    signature: str,
    mine: Bools,
    data_time_s: int | None,
    progress: "_Progress",
) -> int:
    """Load a file's rows of the buckets in `mine`, every one of them; how many were expired."""
    found = created = refused = expired = spoiled_states = spoiled_weights = 0
    for batch in table_files.batches(directory, file):
        is_mine = mine[routing.buckets_of(batch.keys)]
        rows = np.concatenate([batch.embeddings[is_mine], batch.states[is_mine]], axis=1)
        states, weights = _begin_spoiled_states(rows, table.layout)
        spoiled_states += states
        spoiled_weights += weights
        result = table.load(
            batch.keys[is_mine],
            rows,
            batch.times[is_mine],
            signature,
            data_time_s,
            drop_expired=data_time_s
            is not None,  # early versions wrote neither data times nor expired rows
        )
        found += rows.shape[0]
        created += result.created
        refused += result.refused
        expired += result.expired
        progress.add(batch.keys.size)
    path = directory / file.name
    if spoiled_states:
        logger.warning(
            "optimizer state is not finite, it begins anew: table=%s rows=%d file=%s",
            table.config.name,
            spoiled_states,
            path,
        )
    if spoiled_weights:
        logger.warning(
            "weights are not finite, they learn nothing until they are assigned or erased: table=%s rows=%d file=%s",
            table.config.name,
            spoiled_weights,
            path,
        )
    if refused:
        raise LimitExceeded(
            f"table {table.config.name}: {refused} of the {found} rows that this ps needs of {path} find no room; it "
            f"holds {len(table)} rows in a memory_budget_bytes of {table.config.memory_budget_bytes}; "
            "start more parameter servers, or give them --restore-over-budget"
        )
    if created + expired != found:
        raise CheckpointDamaged(
            f"{path} has {found} rows for this ps, {created} are new and {expired} expired: "
            f"{found - created - expired} ids are in another file of table {table.config.name} too"
        )
    return expired


def _begin_spoiled_states(rows: F32, layout: RowLayout) -> tuple[int, int]:
    """Give rows whose optimizer state is not finite the state of a new row; how many, and how many weights are not.

    Early versions saved such rows. Every update of theirs would be undone, because the row is not finite after it.
    """
    is_finite = finite_mask(frozen(rows))
    if is_finite is None:
        return 0, 0
    suspects = np.flatnonzero(~is_finite)
    is_spoiled = ~np.isfinite(rows[suspects, layout.dim :]).all(axis=1)
    rows[suspects[is_spoiled], layout.dim :] = layout.template[layout.dim :]
    has_spoiled_weights = ~np.isfinite(rows[suspects, : layout.dim]).all(axis=1)
    return int(np.count_nonzero(is_spoiled)), int(np.count_nonzero(has_spoiled_weights))


class _Progress:
    """Says from time to time how far a restore is. The lock guards its counts, which several threads add to."""

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
            read = self._rows, self._num_rows, self._files, self._num_files
        logger.info("restoring: %d of %d rows read, %d of %d files done", *read)


def _restore_memory(
    content: Manifest, directory: Path, mine: Bools, tables: dict[str, EmbeddingTable]
) -> None:
    """Give tables their touched keys, and what their servers had counted."""
    filters: dict[str, list[State | None]] = {}
    touched: list[tuple[str, I64, int]] = []
    for file in content.files:
        if file.kind not in (filter_files.FILTER, filter_files.TOUCHED):
            continue
        is_needed = bool((arrow_files.buckets_of(file) & mine).any())
        if file.kind == filter_files.FILTER and not is_needed:
            filters.setdefault(file.table, []).append(None)
        if not is_needed:
            continue
        manifest.verify(directory, file)
        with arrow_files.opened(directory, file) as reader:
            if file.kind == filter_files.FILTER:
                filters.setdefault(file.table, []).append(
                    filter_files.read_filter(reader, file.name, mine)
                )
            else:
                touched.append((file.table, *filter_files.read_touched(reader, mine)))
    for table in tables.values():
        _restore_filter(table, filters.get(table.config.name))
    for name, keys, forgotten in touched:
        if name not in tables:
            raise CheckpointDamaged(
                f"the checkpoint has touched keys of table {name}, but no file of its rows"
            )
        tables[name].restore_touched(keys, forgotten)


def _restore_filter(table: EmbeddingTable, states: list[State | None] | None) -> None:
    """Give a table what its servers had counted; None are filters of servers whose buckets went elsewhere."""
    if not isinstance(table.admission, CountingFilter):
        return
    if states is None:
        raise CheckpointDamaged(
            f"the checkpoint has rows of table {table.config.name}, but not its admission filter"
        )
    concerned = [state for state in states if state is not None]
    if concerned:
        table.admission.restore(union_of(concerned))


def _restore_variables(
    content: Manifest, directory: Path, owners: NDArray[np.uint16], index: int
) -> list[Variable]:
    num_ps = int(owners.max()) + 1
    files = [file for file in content.files if file.kind == "variables"]
    if [file.buckets for file in files] == [
        arrow_files.ranges_of(owners == number) for number in range(num_ps)
    ]:
        files = [files[index]]  # each was written by a server that had what one has now
    saved: list[SavedVariable] = []
    for file in files:
        manifest.verify(directory, file)
        with arrow_files.opened(directory, file) as reader:
            saved += variable_files.read(reader, file, owners, index)
    return variable_files.owned(saved, owners, index)


def load_for_serving(
    directory: Path, *, skip_zero_embedding: bool = False
) -> dict[str, ServingTable]:
    """All tables of a checkpoint, by name, as serving stores them, without expired rows; every file is verified."""
    files = [file for file in manifest.read(directory).files if file.kind == "table"]
    headers = {file.name: table_files.header(directory, file) for file in files}
    data_times = table_files.newest(headers, files)
    tables: dict[str, ServingTable] = {}
    for file in files:
        config = headers[file.name].config
        if config.name not in tables:
            tables[config.name] = ServingTable(config, skip_zero_embedding=skip_zero_embedding)
        expiry = Expiry(config)
        now_s = data_times.get(file.table, 0)
        for batch in table_files.batches(directory, file):
            is_kept = ~expiry.expired(batch.keys, batch.times, now_s)
            times = dated(batch.times[is_kept], now_s)
            tables[config.name].upsert(batch.keys[is_kept], batch.embeddings[is_kept], times)
    return tables


def _readable(table: str) -> str:
    """Enough of a table's name to recognise its file; the manifest says which table it really is."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", table[:60])
