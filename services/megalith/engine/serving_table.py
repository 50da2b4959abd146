"""A table for serving: the compressed embedding of each id.

It has nothing to train them with.
"""

import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from megalith.engine.kernels.layout import Secret
from megalith.engine.segments.compressor import RowCodec, zero_rows
from megalith.engine.table import checks
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import ReadOnlyTable, ShapeMismatch
from megalith.kernels.dtypes import F32, I64, U8, Bools
from megalith.schema import Segment, Sgd, TableConfig, Zeros

_IDS_AT_ONCE = 65_536
_WORD = np.dtype(np.float32).itemsize


class ServingTable:
    """Rows of one to four bytes a float, as the compressors of the segments say.

    Any thread may call any method.

    It is an embedding table whose rows are the bytes of the compressed ones, so that lookups run
    while others write, a row is seen whole, and the table grows and gives memory back like any
    other; the bytes of a row are filled up to whole words of four. All zero bytes decode to zeros
    with every compressor: that is what an absent id reads.

    Update times are kept, unlike in Monolith, where rows of a serving table look expired at
    once.

    `_writing` lets one write at a time in: to add is to read and then to write. Lookups do not take
    it.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        skip_zero_embedding: bool = False,
        secret: Secret | None = None,
    ) -> None:
        """Of `config` the segments' widths and compressors, expiry and memory budget count.

        With `skip_zero_embedding` a row of zeros is not stored, and drops the one there is: reading
        it is the same. `secret` is that of an EmbeddingTable.
        """
        self.config = config
        self.dim = config.dim
        self._skips_zeros = skip_zero_embedding
        self._writing = threading.Lock()

        segments = [(segment.compressor, segment.dim) for segment in config.segments]
        self._codec = RowCodec(segments)
        self._words = -(-self._codec.row_bytes // _WORD)
        self._rows = EmbeddingTable(
            TableConfig(
                config.name,
                (Segment(self._words, Zeros(), Sgd()),),
                expire_days=config.expire_days,
                expire_days_by_slot=config.expire_days_by_slot,
                memory_budget_bytes=config.memory_budget_bytes,
                max_expire_share=config.max_expire_share,
                initial_capacity=config.initial_capacity,
            ),
            secret=secret,
        )

    def lookup(self, ids: I64) -> F32:
        """The embeddings of ids, zeros for absent ones."""
        words = self._rows.lookup(ids)
        stored = self._stored_in(words)
        return self._codec.decode(np.ascontiguousarray(stored))

    def contains(self, ids: I64) -> Bools:
        return self._rows.contains(ids)

    def upsert(self, ids: I64, values: F32, times: I64 | None = None) -> int:
        """Set rows to `values` [ids, dim]; how many were refused.

        They were changed at `times`, in Unix seconds, 0 if not given.

        Ids are distinct. Only a table with a memory budget refuses, and only ids that it does not
        hold.
        """
        times = self._checked_times(ids, values, times)
        with self._writing:
            return self._store(ids, values, times)

    def upsert_compressed(self, ids: I64, rows: U8, times: I64) -> int:
        """`upsert` of rows [ids, bytes of a row] that a codec of the same segments made."""
        name = self.config.name
        checks.check_ids(ids, name)
        checks.check_distinct(ids, name)
        checks.check_times(times, ids.size, name)

        if rows.shape != (ids.size, self._codec.row_bytes):
            raise ShapeMismatch(
                f"table {name}: compressed rows of shape {rows.shape}, expected "
                f"{(ids.size, self._codec.row_bytes)}"
            )

        with self._writing:
            return self._store_bytes(ids, rows, times)

    def ids(self) -> Iterator[I64]:
        """All ids, some at a time. Rows may come and go meanwhile."""
        offset = 0
        while True:
            part = self._rows.dump(limit=_IDS_AT_ONCE, offset=offset, with_expired=True)
            if not part.ids.size:
                return

            offset = part.offset
            yield part.ids

    def assign_add(self, ids: I64, values: F32, times: I64 | None = None) -> int:
        """Add to rows as they are read, rounded, and round the sums; an absent row counts as zeros.

        Like `upsert`.
        """
        times = self._checked_times(ids, values, times)
        with self._writing:
            sums = self.lookup(ids) + values
            checks.check_finite(sums, self.config.name, "sums")
            return self._store(ids, sums, times)

    def _checked_times(self, ids: I64, values: F32, times: I64 | None) -> I64:
        name = self.config.name
        checks.check_ids(ids, name)
        checks.check_floats(values, ids.size, self.dim, name, "values")
        checks.check_finite(values, name, "values")
        checks.check_distinct(ids, name)

        if times is None:
            times = np.zeros(ids.size, np.int64)

        return checks.check_times(times, ids.size, name)

    def _store(self, ids: I64, values: F32, times: I64) -> int:
        if self._skips_zeros:
            is_zero = zero_rows(values)
            self._rows.erase(ids[is_zero])

            ids = ids[~is_zero]
            values = values[~is_zero]
            times = times[~is_zero]

        return self._store_bytes(ids, self._codec.encode(values), times)

    def _store_bytes(self, ids: I64, compressed: U8, times: I64) -> int:
        words = np.zeros((ids.size, self._words), np.float32)
        self._stored_in(words)[:] = compressed
        result = self._rows.load(ids, words, times)
        return result.refused

    def _stored_in(self, words: F32) -> U8:
        """The bytes of rows in the words that hold them; the last word may be half used."""
        as_bytes = words.view(np.uint8)
        return as_bytes[:, : self._codec.row_bytes]

    def erase(self, ids: I64) -> int:
        """Drop rows; how many there were."""
        with self._writing:
            return self._rows.erase(ids)

    def expire(self, now_s: int | None = None) -> int:
        """Drop the rows that are expired at data time `now_s` (default: the newest of any row).

        How many.
        """
        return self._rows.expire(now_s)

    def clear(self) -> None:
        self._rows.clear()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def stored_bytes(self) -> int:
        """Bytes of a compressed row."""
        return self._codec.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes, in whole words; the index takes about 23 more."""
        return self._words * _WORD

    @property
    def nbytes(self) -> int:
        """Bytes of index and rows."""
        return self._rows.nbytes

    # ------------------------------------------------- what only a training table does

    def apply_gradients(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("takes no gradients")

    def lookup_entry(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("keeps no optimizer state")

    def dump(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("cannot be saved; the checkpoint is that of the parameter servers")

    def _refuse(self, reason: str) -> NoReturn:
        raise ReadOnlyTable(f"table {self.config.name} is for serving: it {reason}")
