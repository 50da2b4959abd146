"""What one push carries, and how large it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megalith.kernels.dtypes import F32, I64

_TAG_BYTES = 1  # all tags are below 16
_VARINT_STEPS = np.uint64(1) << np.arange(7, 64, 7, dtype=np.uint64)  # from here, a byte more


@dataclass(frozen=True, slots=True)
class TableDelta:
    """Rows of one table: `values` [ids, dim], zeros for ids without a row."""

    table: str
    ids: I64
    values: F32

    @property
    def dim(self) -> int:
        return int(self.values.shape[1])


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """Rows of all tables that are synced, also of those without a change.

    With `multi_table`, the tables are parts of one multi-table of that name.
    """

    model_name: str
    signature: str
    timeout_ms: int
    deltas: Sequence[TableDelta]
    multi_table: str = ""

    @property
    def rows(self) -> int:
        return sum(delta.ids.size for delta in self.deltas)

    @property
    def content_bytes(self) -> int:
        """Of ids and values in the call that is made."""
        return sum(delta.ids.nbytes + delta.values.nbytes for delta in self.deltas)

    @property
    def num_bytes(self) -> int:
        """Size of the `monolith.parameter_sync.PushRequest` that says the same."""
        names = _text_bytes(self.model_name) + _text_bytes(self.signature)
        timeout = _TAG_BYTES + _varint_bytes(self.timeout_ms)
        tables = sum(_field_bytes(_delta_bytes(delta)) for delta in self.deltas)
        return names + timeout + tables


def _delta_bytes(delta: TableDelta) -> int:
    name = _text_bytes(delta.table)
    dim = _TAG_BYTES + _varint_bytes(delta.dim)
    if not delta.ids.size:
        return name + dim

    ids = _field_bytes(_varints_bytes(delta.ids))
    values = _field_bytes(delta.values.nbytes)
    return name + dim + ids + values


def _field_bytes(length: int) -> int:
    """A field with a length before its content."""
    return _TAG_BYTES + _varint_bytes(length) + length


def _text_bytes(text: str) -> int:
    return _field_bytes(len(text.encode()))


def _varint_bytes(number: int) -> int:
    return _varints_bytes(np.array([number], np.int64))


def _varints_bytes(numbers: I64) -> int:
    """Seven bits a byte; a negative number takes ten."""
    more = np.searchsorted(_VARINT_STEPS, numbers.view(np.uint64), side="right")
    return numbers.size + int(more.sum())
