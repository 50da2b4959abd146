"""Several tables in one call: a server gets the ids of all of them in one message.

    ids      | shard 0: table 0, table 1, ... | shard 1: table 0, ... |     concatenated, tables in the order of names
    sizes    number of ids of each piece, at shard * K + table
    floats   the rows of the pieces in the same order, flat

A piece is a view of the caller's arrays: nothing is copied on the way to a table.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.ps import batch
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.table import EmbeddingTable
from megalith.ps.table_stats import WriteResult
from megalith.wire.errors import (
    InvalidSetting,
    MalformedArray,
    ShapeMismatch,
    UnknownTable,
    some_of,
)

UNKNOWN = -1  # status of an id whose table does not exist


class FusedRows(NamedTuple):
    """A fused lookup's answer, with the offsets that the gradients come back with."""

    embeddings: F32
    emb_splits: I64  # floats of each shard
    id_offsets: I64  # first id of each piece, and the end
    emb_offsets: I64  # first float of each piece, and the end
    ids: I64


class Piece(NamedTuple):
    """The part of a batch that goes to one table, the one of that number in the group."""

    number: int
    table: EmbeddingTable
    keys: I64
    rows: F32


class TableGroup:
    """Tables by name, always taken in the order of the names, whatever order they came in.

    A write answers with one result for each piece, in their order; one without ids is left alone. All pieces are
    checked before the first is written, so a call that raises has changed nothing.
    """

    def __init__(self, tables: Mapping[str, EmbeddingTable]) -> None:
        if not tables:
            raise InvalidSetting("fused: a group of no tables")
        self.names = tuple(sorted(tables))
        self._tables = tuple(tables[name] for name in self.names)
        self._dims = np.array([table.layout.dim for table in self._tables], np.int64)
        self._gradient_widths = np.array(
            [table.layout.gradient_width for table in self._tables], np.int64
        )

    def __getitem__(self, name: str) -> EmbeddingTable:
        if name not in self.names:
            raise UnknownTable(f"no table {name}; there are {some_of(self.names)}")
        return self._tables[self.names.index(name)]

    def lookup(self, ids: I64, sizes: NDArray[Any]) -> FusedRows:
        """The embeddings of all pieces, one after the other."""
        counts, id_offsets, emb_offsets = self._offsets(ids, sizes, self._dims)
        embeddings = np.empty(emb_offsets[-1], np.float32)
        for piece in self._pieces(ids, counts, self._dims, embeddings):
            piece.table.lookup(piece.keys, piece.rows)
        emb_splits = np.diff(emb_offsets[:: len(self.names)])
        return FusedRows(embeddings, emb_splits, id_offsets, emb_offsets, ids)

    def apply_gradients(
        self,
        ids: I64,
        sizes: NDArray[Any],
        grads: F32,
        learning_rates: Sequence[float] | F32 | None = None,
        *,
        req_time_s: int = 0,
        step: int = 0,
        dedup: bool = False,
    ) -> list[WriteResult]:
        """One update for each piece; `learning_rates` are those of all tables' segments, in their order.

        Everything is checked before the first piece is applied. `dedup` sums within a piece. Rows of tables that take
        pulled weights (dc) are twice as wide, as in their own `apply_gradients`.
        """
        counts, _, _ = self._offsets(ids, sizes, self._gradient_widths, grads)
        pieces = list(self._pieces(ids, counts, self._gradient_widths, grads))
        rates = self._rates_by_table(learning_rates, step)
        for piece in pieces:
            piece.table.check_gradients(
                piece.keys, piece.rows, rates[piece.number], step, dedup=dedup
            )
        batch.check_time(req_time_s, "fused")
        return [
            piece.table.apply_checked(
                piece.keys,
                piece.rows,
                rates[piece.number],
                req_time_s=req_time_s,
                step=step,
                dedup=dedup,
            )
            if piece.keys.size
            else WriteResult()
            for piece in pieces
        ]

    def assign(
        self, ids: I64, sizes: NDArray[Any], values: F32, req_time_s: int = 0
    ) -> list[WriteResult]:
        """`EmbeddingTable.assign` for each piece, all of them or none."""
        pieces = self._checked_values(ids, sizes, values, req_time_s)
        return [
            piece.table.assign(piece.keys, piece.rows, req_time_s)
            if piece.keys.size
            else WriteResult()
            for piece in pieces
        ]

    def assign_add(
        self, ids: I64, sizes: NDArray[Any], values: F32, req_time_s: int = 0
    ) -> list[WriteResult]:
        """`EmbeddingTable.assign_add` for each piece, all of them or none."""
        pieces = self._checked_values(ids, sizes, values, req_time_s)
        return [
            piece.table.assign_add(piece.keys, piece.rows, req_time_s)
            if piece.keys.size
            else WriteResult()
            for piece in pieces
        ]

    def reinitialize(self, name: str, ids: I64) -> I64:
        """Status of each id: 1 existed, 0 created, -1 because there is no such table."""
        if name not in self.names:
            return np.full(ids.size, UNKNOWN, np.int64)
        return self[name].reinitialize(ids)

    def _checked_values(
        self, ids: I64, sizes: NDArray[Any], values: F32, req_time_s: int
    ) -> list[Piece]:
        counts, _, _ = self._offsets(ids, sizes, self._dims, values)
        pieces = list(self._pieces(ids, counts, self._dims, values))
        for piece in pieces:
            piece.table.check_values(piece.keys, piece.rows)
        batch.check_time(req_time_s, "fused")
        return pieces

    def _offsets(
        self, ids: I64, sizes: NDArray[Any], widths: I64, floats: F32 | None = None
    ) -> tuple[I64, I64, I64]:
        """Ids of each piece, and where its ids and floats begin; all checked against each other."""
        counts = np.asarray(sizes)
        if (
            counts.dtype.kind not in "iu"
            or counts.ndim != 1
            or counts.size % len(self.names)
            or (counts < 0).any()
        ):
            raise ShapeMismatch(
                f"fused sizes {counts.tolist()} are not those of shards of {len(self.names)} tables"
            )
        counts = counts.astype(np.int64)
        id_offsets = np.concatenate([[0], np.cumsum(counts)])
        if batch.check_keys(ids, "fused").size != id_offsets[-1]:
            raise ShapeMismatch(
                f"fused sizes add up to {id_offsets[-1]} ids, but ids have shape {ids.shape}"
            )
        float_offsets = np.concatenate(
            [[0], np.cumsum(counts * np.tile(widths, counts.size // len(self.names)))]
        )
        if floats is not None:
            need = (int(float_offsets[-1]),)
            if floats.dtype != np.float32 or floats.shape != need or not floats.flags.c_contiguous:
                raise MalformedArray(
                    f"fused floats are {floats.dtype} {floats.shape}, need packed float32 {need}"
                )
        return counts, id_offsets, float_offsets

    def _rates_by_table(self, rates: Sequence[float] | F32 | None, step: int) -> list[F32]:
        """Each table's part of the rates of all segments; their own at `step` if none are given."""
        lengths = [len(table.layout.dims) for table in self._tables]
        if rates is None:
            return [table.layout.rates(None, step) for table in self._tables]
        given = np.asarray(rates, np.float32)
        if given.shape != (sum(lengths),):
            raise ShapeMismatch(
                f"learning rates of shape {given.shape}, but the tables have {sum(lengths)} segments"
            )
        return np.split(given, np.cumsum(lengths)[:-1])

    def _pieces(self, ids: I64, counts: I64, widths: I64, floats: F32) -> Iterator[Piece]:
        """All pieces, in order; rows of table k have widths[k] floats."""
        id_at = float_at = 0
        for i, count in enumerate(counts.tolist()):
            number = i % len(self.names)
            width = int(widths[number])
            rows = floats[float_at : float_at + count * width].reshape(count, width)
            yield Piece(number, self._tables[number], ids[id_at : id_at + count], rows)
            id_at, float_at = id_at + count, float_at + count * width
