"""The columns of a table's file: what they are called, and the way there and back.

bucket, id, embedding, one for each field of an optimizer's state, updated_s. The accumulators of
Adagrad in segment 0 are `segment_0_norm`. Early versions have one column `state` with all fields.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.engine.table.row_layout import RowLayout
from megalith.kernels.dtypes import F32, I64

MAGIC_BYTES = 8  # that an Arrow file begins with; its schema follows

# Of the schema's metadata
META = b"megalith"
DATA_TIME = b"max_update_s"
STATE_FIELDS = b"state_fields"

_STATE = "state"
_SEGMENT = "segment_"


class FloatColumn(NamedTuple):
    """Which floats of a row a column has."""

    name: str
    first: int
    width: int


def float_columns(layout: RowLayout) -> Iterator[FloatColumn]:
    """The embedding, then the fields of the state, in the order of a row."""
    yield FloatColumn("embedding", 0, layout.dim)
    for field in layout.state_fields:
        segment = field["segment"]
        name = field["name"]
        first = int(field["first"])
        width = int(field["width"])

        column = f"{_SEGMENT}{segment}_{name}"
        yield FloatColumn(column, layout.dim + first, width)


def schema(layout: RowLayout) -> Any:
    fields = [
        pa.field("bucket", pa.uint16()),
        pa.field("id", pa.int64()),
    ]

    for column in float_columns(layout):
        kind = pa.list_(pa.float32(), column.width)
        fields.append(pa.field(column.name, kind))

    fields.append(pa.field("updated_s", pa.uint32()))
    return pa.schema(fields)


def arrays(
    buckets: NDArray[np.uint16], ids: I64, floats: list[F32], times: NDArray[np.uint32]
) -> list[Any]:
    """The columns of a record batch; `floats` are those of `float_columns`."""
    columns = [
        pa.array(buckets),
        pa.array(ids),
    ]

    for values in floats:
        columns.append(_fixed_lists(values))

    columns.append(pa.array(times))
    return columns


def states_of(batch: pa.RecordBatch) -> F32:
    """The whole optimizer state of each row, side by side."""
    names = batch.schema.names
    if _STATE in names:
        return matrix(batch.column(_STATE))

    fields = []
    for name in names:
        if name.startswith(_SEGMENT):
            column = batch.column(name)
            fields.append(matrix(column))

    if not fields:
        return np.empty((batch.num_rows, 0), np.float32)

    if len(fields) == 1:
        return fields[0]

    return np.concatenate(fields, axis=1)


def _fixed_lists(values: F32) -> pa.FixedSizeListArray:
    count, width = values.shape
    flat = values.reshape(-1)
    elements = pa.array(flat)
    kind = pa.list_(pa.float32(), width)

    # from_arrays divides by the width, which may be 0.
    return pa.Array.from_buffers(kind, count, [None], children=[elements])


def matrix(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    """A column of lists of equal length, where it is: `flatten` would copy it."""
    if column.null_count:
        raise ValueError(f"{column.null_count} lists are null")

    count = len(column)
    width = column.type.list_size
    begin = column.offset * width
    end = begin + count * width
    elements: NDArray[np.float32] = column.values.to_numpy()
    values = elements[begin:end]
    return values.reshape(count, width)
