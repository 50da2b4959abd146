"""The rows of a checkpoint and its increments as a replica holds them: what a ps would send it."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.files import dropped
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.files import variables as variable_files
from megalith.checkpoint.files.tables import RowBatch
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, blocks, manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.restoring import read_ahead
from megalith.checkpoint.restoring.read_ahead import ReadAhead
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.parallel import in_parallel, threads
from megalith.engine.segments.compressor import RowCodec
from megalith.engine.serving_table import ServingTable
from megalith.engine.table import served
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import CheckpointDamaged, LimitExceeded
from megalith.kernels.dtypes import I64, Bools
from megalith.schema import TableConfig
from megalith.schema.variable_parts import numbered_part
from megalith.wire.routing import buckets_of

_THREADS = 2  # that load blocks: reading and checking one while another is stored
_Reader = Callable[[], Iterable[RowBatch]]


class ServedRowsLoading:
    """Loads the rows of some buckets out of a chain, all of them, or raises.

    Expired rows are loaded too: the parameter servers hold theirs until an expiry drops them, and
    say so then. Tables that note no changes are left out, because replicas do not get them.
    """

    def __init__(
        self,
        chain: Chain,
        share: Bools,
        begin_table: Callable[[TableConfig], ServingTable],
        check_stop: Callable[[], None],
    ) -> None:
        """`begin_table` makes an empty table; `check_stop` raises once nobody wants the rows."""
        self._chain = chain
        self._share = share
        self._begin_table = begin_table
        self._check_stop = check_stop
        self._tables: dict[str, _Loaded] = {}
        self.newest_data_s = 0

    def load(self) -> None:
        """CheckpointDamaged if a file, or the number of rows, is not what was written."""
        manifest.check_has_rows(self._chain.directory, self._chain.base)
        for config in self._newest_configs():
            if config.touched_capacity:
                table = self._begin_table(config)
                self._tables[config.name] = _Loaded(config, table)

        directory = self._chain.directory
        with ThreadPoolExecutor(_THREADS, "load") as pool:
            for file in self._files_of(self._chain.base, FileKind.TABLE):
                store = partial(self._store, file)
                readers = self._readers(directory, file)

                for _ in pool.map(store, readers):
                    self._check_stop()

        with threads("ahead", read_ahead.THREADS) as pool:
            rows = ReadAhead(
                self._changes(FileKind.TABLE), self._all_batches, pool, read_ahead.MOST_BYTES
            )
            dropped_ids = ReadAhead(
                self._changes(FileKind.DROPPED), dropped.read, pool, read_ahead.MOST_BYTES
            )
            for increment in self._chain.increments:
                self._load_increment(increment, rows, dropped_ids)

        self._check_whole()

    def _newest_configs(self) -> list[TableConfig]:
        """Each table as the newest file of it says: its compressors are those of now."""
        configs: dict[str, TableConfig] = {}
        files = self._chain.files_of(FileKind.TABLE)
        headers = in_parallel(lambda each: table_files.header(*each), files, "headers")
        for (_, file), header in zip(files, headers, strict=True):
            configs[file.table] = header.config

        return list(configs.values())

    def _files_of(self, content: Manifest, kind: FileKind) -> Iterator[ShardFile]:
        for file in content.files:
            is_wanted = file.kind is kind and file.table in self._tables
            if not is_wanted or not file.rows:
                continue

            is_mine = arrow_files.buckets_of(file) & self._share
            if is_mine.any():
                yield file

    def _changes(self, kind: FileKind) -> Iterator[tuple[Location, ShardFile]]:
        for increment in self._chain.increments:
            for file in self._files_of(increment.manifest, kind):
                yield increment.directory, file

    def _load_increment(
        self,
        increment: Increment,
        rows: ReadAhead[list[RowBatch]],
        dropped_ids: ReadAhead[I64],
    ) -> None:
        """In order: of equal ids the last one counts, and ids that are gone go after that."""
        directory = increment.directory
        for file in self._files_of(increment.manifest, FileKind.TABLE):
            batches: Iterable[RowBatch] | None = rows.take(directory, file)
            if batches is None:
                batches = self._batches(directory, file)

            for batch in batches:
                self._store_batch(file, batch)
                self._check_stop()

        for file in self._files_of(increment.manifest, FileKind.DROPPED):
            loaded = self._tables[file.table]
            ids = dropped_ids.take(directory, file)
            if ids is None:
                ids = dropped.read(directory, file)

            gone = np.ascontiguousarray(ids)
            loaded.table.erase(gone)

    def _batches(self, directory: Location, file: ShardFile) -> Iterator[RowBatch]:
        for read in self._readers(directory, file):
            yield from read()

    def _all_batches(self, directory: Location, file: ShardFile) -> list[RowBatch]:
        return list(self._batches(directory, file))

    def _readers(self, directory: Location, file: ShardFile) -> list[_Reader]:
        """One for each block with rows of the share; early versions have no blocks."""
        found = blocks.blocks_of(file)
        if not found:
            return [partial(table_files.row_batches, directory, file)]

        schema = table_files.schema_of(directory, file)
        readers: list[_Reader] = []
        for block in found:
            if block.is_about(self._share):
                read = partial(table_files.block_rows, directory, file, schema, block)
                readers.append(read)

        return readers

    def _store(self, file: ShardFile, read: _Reader) -> None:
        for batch in read():
            self._store_batch(file, batch)

    def _store_batch(self, file: ShardFile, batch: RowBatch) -> None:
        loaded = self._tables[file.table]
        buckets = buckets_of(batch.ids)
        is_mine = self._share[buckets]

        ids = batch.ids[is_mine]
        embeddings = batch.embeddings[is_mine]
        times = batch.times[is_mine]
        loaded.store(ids, embeddings, times)

        newest_s = int(times.max(initial=0))
        self.newest_data_s = max(self.newest_data_s, newest_s)

    def _check_whole(self) -> None:
        """Compare with what the manifest says, which is known for all buckets together."""
        if not self._share.all():
            return

        said = 0
        for file in self._chain.last.files:
            if file.kind is FileKind.TABLE and file.table in self._tables:
                said += file.held if self._chain.increments else file.rows

        counts = [len(each.table) for each in self._tables.values()]
        found = sum(counts)
        if found != said:
            raise CheckpointDamaged(
                f"{self._chain} gives {found} rows, and its manifest says {said}"
            )


class _Loaded:
    """A table, and what makes a stored row of a saved one."""

    def __init__(self, config: TableConfig, table: ServingTable) -> None:
        segments = []
        for segment in config.segments:
            segments.append((segment.compressor, segment.dim))

        self.table = table
        self._layout = RowLayout(config)
        self._codec = RowCodec(segments)

    def store(self, ids: NDArray[np.int64], embeddings: NDArray[Any], times: Any) -> None:
        values = served.retrieved(self._layout, embeddings)
        compressed = self._codec.encode(values)
        packed = np.ascontiguousarray(ids)
        refused = self.table.upsert_compressed(packed, compressed, times)
        if refused:
            name = self.table.config.name
            raise LimitExceeded(f"table {name}: there is no room here for {refused} rows")


def variables_of(chain: Chain) -> dict[str, NDArray[Any]]:
    """Dense variables, or their parts, by name as parameter servers call them."""
    directory, newest = chain.folders[-1]
    values = {}
    for file in newest.files:
        if file.kind is not FileKind.VARIABLES:
            continue

        with arrow_files.verified(directory, file) as reader:
            for saved in variable_files.read_all(reader):
                name = numbered_part(saved.name, saved.part, saved.parts)
                values[name] = saved.value

    return values
