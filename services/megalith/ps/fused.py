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
from megalith.wire.errors import MalformedArray, ShapeMismatch, UnknownTable

UNKNOWN = -1  # status of an id whose table does not exist


class FusedRows(NamedTuple):
    """A fused lookup's answer, with the offsets that the gradients come back with."""

    embeddings: F32
    emb_splits: I64  # floats of each shard
    id_offsets: I64  # first id of each piece, and the end
    emb_offsets: I64  # first float of each piece, and the end
    ids: I64


class Piece(NamedTuple):
    """The part of a batch that goes to one table."""

    table: EmbeddingTable
    keys: I64
    rows: F32
    rates: F32


class TableGroup:
    """Tables by name, always taken in the order of the names, whatever order they came in."""

    def __init__(self, tables: Mapping[str, EmbeddingTable]) -> None:
        self.names = tuple(sorted(tables))
        self._tables = tuple(tables[name] for name in self.names)
        self._dims = np.array([table.layout.dim for table in self._tables], np.int64)

    def __getitem__(self, name: str) -> EmbeddingTable:
        if name not in self.names:
            raise UnknownTable(f"no table {name}; there are {', '.join(self.names)}")
        return self._tables[self.names.index(name)]

    def lookup(self, ids: I64, sizes: NDArray[Any]) -> FusedRows:
        """The embeddings of all pieces, one after the other."""
        counts, id_offsets, emb_offsets = self._offsets(ids, sizes)
        embeddings = np.empty(emb_offsets[-1], np.float32)
        for piece in self._pieces(ids, counts, embeddings, None):
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
        """One update for each piece; `learning_rates` are those of all tables' segments, one table after the other.

        Everything is checked before the first piece is applied. `dedup` sums within a piece.
        """
        counts, _, _ = self._offsets(ids, sizes, grads)
        if not all(table.config.skip_nonfinite for table in self._tables):
            batch.check_finite(grads.reshape(1, -1), "fused", "gradients")
        return [
            piece.table.apply_gradients(
                piece.keys, piece.rows, piece.rates, req_time_s=req_time_s, step=step, dedup=dedup
            )
            for piece in self._pieces(ids, counts, grads, self._rates(learning_rates, step))
        ]

    def assign(self, ids: I64, sizes: NDArray[Any], values: F32, req_time_s: int = 0) -> list[WriteResult]:
        counts, _, _ = self._offsets(ids, sizes, values)
        return [
            piece.table.assign(piece.keys, piece.rows, req_time_s) for piece in self._pieces(ids, counts, values, None)
        ]

    def assign_add(self, ids: I64, sizes: NDArray[Any], values: F32, req_time_s: int = 0) -> list[WriteResult]:
        counts, _, _ = self._offsets(ids, sizes, values)
        return [
            piece.table.assign_add(piece.keys, piece.rows, req_time_s)
            for piece in self._pieces(ids, counts, values, None)
        ]

    def reinitialize(self, name: str, ids: I64) -> I64:
        """Status of each id: 1 existed, 0 created, -1 because there is no such table."""
        if name not in self.names:
            return np.full(ids.size, UNKNOWN, np.int64)
        return self[name].reinitialize(ids)

    def _offsets(self, ids: I64, sizes: NDArray[Any], floats: F32 | None = None) -> tuple[I64, I64, I64]:
        """Ids of each piece, and where its ids and floats begin; all checked against each other."""
        counts = np.asarray(sizes).astype(np.int64)
        if counts.ndim != 1 or counts.size % len(self.names) or (counts < 0).any():
            raise ShapeMismatch(f"fused sizes {counts.tolist()} are not those of shards of {len(self.names)} tables")
        id_offsets = np.concatenate([[0], np.cumsum(counts)])
        if batch.check_keys(ids, "fused").size != id_offsets[-1]:
            raise ShapeMismatch(f"fused sizes add up to {id_offsets[-1]} ids, but ids have shape {ids.shape}")
        dims = np.tile(self._dims, counts.size // len(self.names))
        emb_offsets = np.concatenate([[0], np.cumsum(counts * dims)])
        if floats is not None and (floats.dtype != np.float32 or floats.shape != (emb_offsets[-1],)):
            raise MalformedArray(f"fused floats are {floats.dtype} {floats.shape}, need float32 ({emb_offsets[-1]},)")
        return counts, id_offsets, emb_offsets

    def _rates(self, rates: Sequence[float] | F32 | None, step: int) -> F32:
        if rates is None:
            return np.concatenate([table.layout.rates(None, step) for table in self._tables])
        expected = sum(len(table.layout.dims) for table in self._tables)
        given = np.asarray(rates, np.float32)
        if given.shape != (expected,):
            raise ShapeMismatch(f"learning rates of shape {given.shape}, but the tables have {expected} segments")
        return given

    def _pieces(self, ids: I64, counts: I64, floats: F32, rates: F32 | None) -> Iterator[Piece]:
        """The non-empty pieces, in order. `rates` are those of all tables' segments."""
        id_at = float_at = 0
        none = np.empty(0, np.float32)
        for i, count in enumerate(counts.tolist()):
            k = i % len(self.names)
            table, dim = self._tables[k], int(self._dims[k])
            rows = floats[float_at : float_at + count * dim].reshape(count, dim)
            first_rate = sum(len(earlier.layout.dims) for earlier in self._tables[:k])
            own = none if rates is None else rates[first_rate : first_rate + len(table.layout.dims)]
            if count:
                yield Piece(table, ids[id_at : id_at + count], rows, own)
            id_at, float_at = id_at + count, float_at + count * dim
