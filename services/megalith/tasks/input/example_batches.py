"""Blocks of files of `ExampleBatch` messages, as columns.

A feature with one id or none in every example of the first block is a column of single values, any
other a column of lists. The columns `label` and `time_s` are the labels and the times of batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from megalith.client import Ragged
from megalith.errors import BadData, InvalidRequest
from megalith.protos import example_batch_pb2 as pb
from megalith.replica.predicting.feature_messages import features_from_proto
from megalith.replica.predicting.served_task import FeatureValues
from megalith.tasks.input.tf_records import record_blocks, split_records
from megalith.wire import arrays

F32 = NDArray[np.float32]

LABEL = "label"
TIME = "time_s"


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """One message. Its columns have `size` examples; `labels` is None if it has none."""

    size: int
    features: dict[str, FeatureValues]
    labels: F32 | None
    dense: dict[str, F32]
    req_time_s: int

    def places(self, feature: str) -> Ragged:
        """Where in its values those of each example are."""
        found = self.features[feature]
        places = np.arange(len(found.values))
        if found.is_shared:
            repeated = np.tile(places, self.size)
            splits = np.arange(self.size + 1) * places.size
            return Ragged(repeated, splits)

        return FeatureValues(places, found.row_splits).as_ids(feature)


def decode_batch(record: bytes, where: str) -> DecodedBatch:
    """A message whose lengths fit together; BadData, which names `where`, for any other."""
    try:
        message = pb.ExampleBatch.FromString(record)
    except DecodeError as error:
        raise BadData(f"{where} is no ExampleBatch") from error

    try:
        decoded = _decoded(message)
        _check(decoded)
    except InvalidRequest as error:
        raise BadData(f"{where}: {error}") from error

    return decoded


def batch_blocks(path: str, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(where blocks of whole messages end, how many examples each has)."""
    ends, _ = record_blocks(path, size)
    rows = []
    start = 0

    with open(path, "rb") as file:
        for number, end in enumerate(ends):
            content = file.read(end - start)
            batches = _batches(content, f"{path}, block {number}")

            rows.append(sum(batch.size for batch in batches))
            start = end

    return ends, tuple(rows)


def batch_schema(content: bytes, where: str) -> pa.Schema:
    """Names and types of the columns of a block."""
    types: dict[str, pa.DataType] = {}
    lists: set[str] = set()
    for batch in _batches(content, where):
        for name, found in batch.features.items():
            types.setdefault(name, _value_type(found))

            lengths = np.diff(batch.places(name).row_splits)
            if lengths.max(initial=0) > 1:
                lists.add(name)

        for name in batch.dense:
            types[name] = pa.float32()

        if batch.labels is not None:
            types[LABEL] = pa.float32()

        if batch.req_time_s:
            types[TIME] = pa.int64()

    fields = []
    for name in sorted(types):
        kind = types[name]
        fields.append((name, pa.list_(kind) if name in lists else kind))

    return pa.schema(fields)


def read_batches(content: bytes, schema: pa.Schema, where: str) -> pa.Table:
    """The columns of the schema; what a batch lacks is missing in its examples."""
    tables = []
    for number, batch in enumerate(_batches(content, where)):
        columns = []
        for field in schema:
            place = f"{where}, record {number}, column {field.name}"
            columns.append(_column(batch, field, place))

        tables.append(pa.table(columns, schema=schema))

    return pa.concat_tables(tables)


def _batches(content: bytes, where: str) -> Iterator[DecodedBatch]:
    data, begins, ends = split_records(content, where)
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        record = data[begin:end].tobytes()
        yield decode_batch(record, f"{where}, record {number}")


def _decoded(message: pb.ExampleBatch) -> DecodedBatch:
    size = message.num_examples
    if size < 0:
        raise BadData(f"num_examples is {size}")

    labels = None
    if message.labels:
        labels = arrays.decode(message.labels, arrays.VALUE, (size,), "labels")

    dense = {}
    for column in message.dense_columns:
        name = column.column
        if name in dense:
            raise BadData(f"dense column {name} is given twice")

        what = f"dense column {name}"
        dense[name] = arrays.decode(column.values, arrays.VALUE, (size,), what)

    features = features_from_proto(message.features)
    return DecodedBatch(size, features, labels, dense, message.req_time_s)


def _check(batch: DecodedBatch) -> None:
    names = [LABEL, TIME, *batch.features, *batch.dense]
    for name in names:
        if names.count(name) > 1:
            raise BadData(f"{name!r} names two columns; label and time_s are taken")

    for name in batch.features:
        places = batch.places(name)
        if len(places) != batch.size:
            raise BadData(
                f"feature {name} has {len(places)} examples, but num_examples is {batch.size}"
            )


def _value_type(found: FeatureValues) -> pa.DataType:
    return pa.binary() if isinstance(found.values, list) else pa.int64()


def _column(batch: DecodedBatch, field: pa.Field, where: str) -> pa.Array:
    if field.name == LABEL and batch.labels is not None:
        return pa.array(batch.labels)
    if field.name == TIME and batch.req_time_s:
        return pa.array(np.full(batch.size, batch.req_time_s))
    if field.name in batch.dense:
        return pa.array(batch.dense[field.name])
    if field.name in batch.features:
        return _ids(batch, field, where)

    # An example without a list has no ids, as one with an empty list.
    if pa.types.is_list(field.type):
        return pa.array([[]] * batch.size, field.type)

    return pa.nulls(batch.size, field.type)


def _ids(batch: DecodedBatch, field: pa.Field, where: str) -> pa.Array:
    found = batch.features[field.name]
    is_list = pa.types.is_list(field.type)
    wanted = field.type.value_type if is_list else field.type
    kind = _value_type(found)

    if len(found.values) and kind != wanted:
        raise BadData(f"{where}: it has {kind}, and others have {wanted}")

    places = batch.places(field.name)
    values = pa.array(found.values, wanted).take(pa.array(places.values))
    if is_list:
        return pa.ListArray.from_arrays(places.row_splits.astype(np.int32), values)

    counts = np.diff(places.row_splits)
    many = np.flatnonzero(counts > 1)
    if many.size:
        example = many[0]
        raise BadData(
            f"{where}: example {example} has {counts[example]} values, and those of the first "
            "block have one each"
        )

    return values.take(pa.array(places.row_splits[:-1], mask=counts == 0))
