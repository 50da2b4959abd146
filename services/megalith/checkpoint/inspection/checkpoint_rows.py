"""The rows of one table of a checkpoint with its increments: all of them, or those of some buckets.

Two checkpoints are compared bucket by bucket, so that only a part of each is in memory at a time.
Increments are put together in the same way: the last row of an id counts, unless it was dropped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.files.tables import Header, RowBatch
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.inspection.files import ids_of, open_rows
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import I64, Bools
from megalith.wire import routing

ROWS_IN_MEMORY = 256 << 20  # bytes of rows that are kept at a time


class SortedRows(NamedTuple):
    """Some rows, by id: row `order[i]` of `rows` has the id `ids[i]`, and `ids` is sorted."""

    ids: I64
    order: I64
    rows: RowBatch


@dataclass(slots=True)
class _Layer:
    """What a checkpoint, or one of its increments, has of a table.

    An increment may have an id several times, of which the last one counts, and ids that are gone.
    """

    directory: Location
    is_base: bool
    rows: list[ShardFile] = field(default_factory=list)
    dropped: list[ShardFile] = field(default_factory=list)


class TableRows:
    """The rows of one table, out of the files of all servers. The files were verified before."""

    def __init__(self, name: str, layers: list[_Layer]) -> None:
        self.name = name
        self.bytes = 0
        self._layers = layers

        for layer in layers:
            self.bytes += sum(file.bytes for file in layer.rows)

        # An increment may have nothing of the table but ids that were dropped.
        newest = [layer for layer in layers if layer.rows][-1]
        self.header: Header = table_files.header(newest.directory, newest.rows[-1])

    @property
    def _is_base_alone(self) -> bool:
        return len(self._layers) == 1 and self._layers[0].is_base

    def count(self) -> int:
        if self._is_base_alone:
            only = self._layers[0]
            return sum(file.rows for file in only.rows)

        return sum(batch.ids.size for batch in self.batches())

    def batches(self, memory_bytes: int = ROWS_IN_MEMORY) -> Iterator[RowBatch]:
        """All rows, some at a time."""
        if self._is_base_alone:
            yield from _batches(self._layers[0])
            return

        for first, end in ranges(self.bytes, memory_bytes):
            found = self.of_buckets(first, end)
            yield _selected(found.rows, found.order)

    def of_buckets(self, first: int, end: int) -> SortedRows:
        """The rows of the buckets first..end-1. Every file is read; the others' rows are not kept.

        CheckpointDamaged if the checkpoint itself has an id twice.
        """
        parts = []
        numbers = []  # of the layer of each row
        gone = []  # the ids that each layer drops
        no_ids = np.empty(0, np.int64)

        for number, layer in enumerate(self._layers):
            for batch in _batches(layer):
                is_wanted = _is_within(batch.ids, first, end)
                part = _selected(batch, is_wanted)
                parts.append(part)
                numbers.append(np.full(part.ids.size, number, np.int64))

            dropped = [no_ids]
            for file in layer.dropped:
                dropped += ids_of(layer.directory, file)

            gone.append(np.concatenate(dropped))

        rows = self._joined(parts)
        layer_of = np.concatenate([no_ids, *numbers])
        return self._newest(rows, layer_of, gone)

    def _newest(self, rows: RowBatch, layer_of: I64, gone: list[I64]) -> SortedRows:
        """Of each id the last row, unless it is gone since."""
        order = np.argsort(rows.ids, kind="stable")
        ids = rows.ids[order]
        layer_in_order = layer_of[order]

        is_replaced = np.zeros(ids.size, np.bool_)
        is_replaced[:-1] = ids[:-1] == ids[1:]

        both_in_base = is_replaced.copy()
        both_in_base[:-1] &= layer_in_order[1:] == 0
        # A table that was made after the checkpoint has no part in it.
        if self._layers[0].is_base and both_in_base.any():
            directory = self._layers[0].directory
            raise CheckpointDamaged(
                f"{directory}: table {self.name} has ids that occur twice; "
                f"megalith ckpt verify {directory} names their files"
            )

        is_kept = ~is_replaced
        for number, dropped in enumerate(gone):
            if not dropped.size:
                continue

            is_gone = np.isin(ids, dropped)
            is_gone &= layer_in_order <= number  # a later layer may have the id again
            is_kept &= ~is_gone

        return SortedRows(ids[is_kept], order[is_kept], rows)

    def _joined(self, parts: list[RowBatch]) -> RowBatch:
        widths = {(part.embeddings.shape[1], part.states.shape[1]) for part in parts}
        if len(widths) > 1:
            raise CheckpointDamaged(
                f"{self._layers[0].directory}: the files of table {self.name} have rows of "
                f"different widths, {sorted(widths)}"
            )

        return _joined(parts, self.header)


def tables_of(chain: Chain) -> dict[str, TableRows]:
    """The tables of a checkpoint and its increments, by name."""
    layers: dict[str, dict[Location, _Layer]] = {}
    for directory, content in chain.folders:
        for file in content.files:
            if file.kind not in (FileKind.TABLE, FileKind.DROPPED):
                continue

            by_directory = layers.setdefault(file.table, {})
            is_base = content.link is None
            layer = by_directory.setdefault(directory, _Layer(directory, is_base))
            if file.kind == FileKind.TABLE:
                layer.rows.append(file)
            else:
                layer.dropped.append(file)

    tables = {}
    for name in sorted(layers):
        of_table = list(layers[name].values())
        if any(layer.rows for layer in of_table):
            tables[name] = TableRows(name, of_table)

    return tables


def ranges(num_bytes: int, memory_bytes: int) -> list[tuple[int, int]]:
    """Buckets from and to, in so many ranges that the rows of each fit the memory."""
    most = routing.NUM_BUCKETS
    wanted = -(-num_bytes // memory_bytes)  # rounded up
    count = min(most, max(1, wanted))

    found = []
    for number in range(count):
        first = number * most // count
        end = (number + 1) * most // count
        found.append((first, end))

    return found


def _batches(layer: _Layer) -> Iterator[RowBatch]:
    for file in layer.rows:
        yield from open_rows(layer.directory, file)


def _is_within(ids: I64, first: int, end: int) -> Bools:
    buckets = routing.buckets_of(ids)
    is_within: Bools = buckets >= first
    is_within &= buckets < end
    return is_within


def _selected(batch: RowBatch, wanted: Bools | I64) -> RowBatch:
    return RowBatch(
        batch.ids[wanted],
        batch.embeddings[wanted],
        batch.states[wanted],
        batch.times[wanted],
    )


def _joined(parts: list[RowBatch], header: Header) -> RowBatch:
    if not parts:
        width = header.config.dim
        return RowBatch(
            np.empty(0, np.int64),
            np.empty((0, width), np.float32),
            np.empty((0, 0), np.float32),
            np.empty(0, np.int64),
        )

    if len(parts) == 1:
        return parts[0]

    return RowBatch(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.embeddings for part in parts]),
        np.concatenate([part.states for part in parts]),
        np.concatenate([part.times for part in parts]),
    )
