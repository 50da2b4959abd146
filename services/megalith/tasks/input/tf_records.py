"""TFRecord files of tf.train.Example, without TensorFlow.

Such files know no columns and no types. Names are those of the first thousand examples. A feature
that has one value or none in every example of the first block is a column of single values; any
other is a column of lists.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from megalith.errors import BadData
from megalith.kernels import crc32c, records
from megalith.kernels.dtypes import I64, U8
from megalith.protos import example_pb2
from megalith.tasks.input.kernels import tf_examples as kernels
from megalith.tasks.input.splits import splits_of

_BLOCK_BYTES = 8 << 20
_NAMED_BY = 1000  # examples from which the names of the features are known
_LISTS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_KINDS = {
    pa.binary(): kernels.BYTES_LIST,
    pa.float32(): kernels.FLOAT_LIST,
    pa.int64(): kernels.INT64_LIST,
}
_KIND_NAMES = {
    kernels.BYTES_LIST: "bytes",
    kernels.FLOAT_LIST: "floats",
    kernels.INT64_LIST: "int64",
}


def record_blocks(path: str, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(where blocks of whole records end, how many records each has)."""
    content = np.memmap(path, np.uint8, mode="r")
    most = size // _BLOCK_BYTES + 2
    ends = np.empty(most, np.int64)
    rows = np.empty(most, np.int64)

    count, end = kernels.block_ends(content, _BLOCK_BYTES, ends, rows)
    if end != size:
        raise BadData(f"{path}: there is no whole record at byte {end:,} of {size:,}")

    block_ends = ends[:count].tolist()
    block_rows = rows[:count].tolist()
    return tuple(block_ends), tuple(block_rows)


def write_records(path: str | Path, examples: Iterable[bytes]) -> None:
    """A TFRecord file with these records."""
    with open(path, "wb") as file:
        for example in examples:
            length = len(example).to_bytes(8, "little")
            checksum_of_length = _checksum(length)
            checksum = _checksum(example)

            file.write(length)
            file.write(checksum_of_length)
            file.write(example)
            file.write(checksum)


def record_schema(content: bytes, where: str) -> pa.Schema:
    """Names and types of the features in a block."""
    data, begins, ends = split_records(content, where)
    types: dict[str, pa.DataType] = {}

    num_read = min(_NAMED_BY, begins.size)
    for number in range(num_read):
        begin = begins[number]
        end = ends[number]

        record = data[begin:end].tobytes()
        example = _parsed(record, f"{where}, record {number}")

        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind is not None:
                types.setdefault(name, _LISTS[kind])

    names = sorted(types)
    found = _Located(data, begins, ends, names, where)
    fields = []

    for number, name in enumerate(names):
        value_type = types[name]
        counts = found.counts(number, value_type)
        is_single = counts.max(initial=0) <= 1

        kind = value_type if is_single else pa.list_(value_type)
        fields.append((name, kind))

    return pa.schema(fields)


def read_records(content: bytes, schema: pa.Schema, where: str) -> pa.Table:
    """The columns of the schema; a feature that an example lacks is missing there."""
    data, begins, ends = split_records(content, where)
    found = _Located(data, begins, ends, schema.names, where)

    columns = []
    for number, field in enumerate(schema):
        column = found.column(number, field.type)
        columns.append(column)

    return pa.table(columns, schema=schema)


class _Located:
    """Where the values of some features are in the examples of a block."""

    def __init__(self, data: U8, begins: I64, ends: I64, names: Sequence[str], where: str) -> None:
        self._data = data
        self._names = names
        self._where = where

        encoded = [name.encode() for name in names]
        name_lengths = [len(name) for name in encoded]
        name_ends = np.cumsum(name_lengths, dtype=np.int64)
        joined_names = np.frombuffer(b"".join(encoded), np.uint8)

        shape = (len(names), begins.size)
        self._kinds = np.zeros(shape, np.uint8)
        self._starts = np.zeros(shape, np.int64)
        self._stops = np.zeros(shape, np.int64)

        bad = kernels.locate(
            data,
            begins,
            ends,
            joined_names,
            name_ends,
            self._kinds,
            self._starts,
            self._stops,
        )
        if bad >= 0:
            raise BadData(f"{where}, record {bad} is no tf.train.Example")

    def counts(self, number: int, kind: pa.DataType) -> I64:
        """How many values each example has, which are of this type."""
        wanted = _KINDS[kind]
        kinds = self._kinds[number]
        has_values = kinds != kernels.NO_VALUES

        wrong = has_values & (kinds != wanted)
        if wrong.any():
            all_wrong = np.flatnonzero(wrong)
            record = int(all_wrong[0])
            found = int(kinds[record])
            has = _KIND_NAMES[found]

            raise BadData(
                f"{self._where}, column {self._names[number]}: record {record} has {has}, "
                f"and others have {_KIND_NAMES[wanted]}"
            )

        starts = self._starts[number]
        stops = self._stops[number]
        counts = np.empty(kinds.size, np.int64)
        bad = kernels.count_values(self._data, wanted, starts, stops, counts)

        if bad >= 0:
            raise BadData(
                f"{self._where}, column {self._names[number]}: record {bad} has a damaged list"
            )

        return counts

    def column(self, number: int, kind: pa.DataType) -> pa.Array:
        is_list = pa.types.is_list(kind)
        value_type = kind.value_type if is_list else kind

        counts = self.counts(number, value_type)
        splits = splits_of(counts)
        num_values = int(splits[-1])
        values = self._values(number, value_type, num_values)

        if is_list:
            offsets = splits.astype(np.int32)
            return pa.ListArray.from_arrays(offsets, values)

        many = np.flatnonzero(counts > 1)
        if many.size:
            record = many[0]
            raise BadData(
                f"{self._where}, column {self._names[number]}: record {record} has "
                f"{counts[record]} values, and those of the first block have one each"
            )

        is_there = counts == 1
        if is_there.all():
            return values

        places = pa.array(splits[:-1], mask=~is_there)
        return values.take(places)

    def _values(self, number: int, kind: pa.DataType, count: int) -> pa.Array:
        starts = self._starts[number]
        stops = self._stops[number]
        if kind == pa.int64():
            numbers = np.empty(count, np.int64)
            kernels.fill_int64(self._data, starts, stops, numbers)
            return pa.array(numbers)

        if kind == pa.float32():
            bits = np.empty(count, np.uint32)
            kernels.fill_float(self._data, starts, stops, bits)
            floats = bits.view(np.float32)
            return pa.array(floats)

        return self._texts(starts, stops, count)

    def _texts(self, starts: I64, stops: I64, count: int) -> pa.Array:
        begins = np.empty(count, np.int64)
        ends = np.empty(count, np.int64)
        kernels.locate_bytes(self._data, starts, stops, begins, ends)

        lengths = ends - begins
        splits = splits_of(lengths)
        offsets = splits.astype(np.int32)
        num_bytes = int(offsets[-1])

        content = np.empty(num_bytes, np.uint8)
        kernels.copy_bytes(self._data, begins, ends, content)

        buffers = [
            None,  # which values are missing: none
            pa.py_buffer(offsets),
            pa.py_buffer(content),
        ]
        kind = pa.binary()
        return pa.Array.from_buffers(kind, count, buffers)


def split_records(content: bytes, where: str) -> tuple[U8, I64, I64]:
    """(bytes, where records begin, where they end); BadData if a checksum is wrong."""
    data: NDArray[np.uint8] = np.frombuffer(content, np.uint8)
    least_record = records.HEADER + records.FOOTER
    most = max(1, data.size // least_record)
    begins = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)

    count, used, status, _ = records.split(data, crc32c.TABLES, begins, ends)
    is_whole = status == records.WHOLE and used == data.size
    if not is_whole:
        raise BadData(f"{where}: the checksum of record {count} is wrong")

    return data, begins[:count], ends[:count]


def _parsed(record: bytes, where: str) -> example_pb2.Example:
    try:
        return example_pb2.Example.FromString(record)
    except DecodeError as error:
        raise BadData(f"{where} is no tf.train.Example") from error


def _checksum(content: bytes) -> bytes:
    data = np.frombuffer(content, np.uint8)
    masked = crc32c.masked_crc32c(data, 0, data.size, crc32c.TABLES)
    return int(masked).to_bytes(4, "little")
