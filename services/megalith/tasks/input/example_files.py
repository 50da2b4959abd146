"""Files of `ExampleBatch` messages as batches of a FeatureTask: written, and read by number."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from megalith.client import Ragged
from megalith.errors import BadData, ShapeMismatch
from megalith.protos import example_batch_pb2 as pb
from megalith.tasks.feature_task import FeatureBatch
from megalith.tasks.input.example_batches import DecodedBatch, decode_batch
from megalith.tasks.input.files import found_files
from megalith.tasks.input.mapped import MappedInput
from megalith.tasks.input.tf_records import split_records, write_records
from megalith.wire import arrays
from megalith.worker.input import Input, InputBatch
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.pieced_input import NumberedPieces

_LENGTH = 8  # bytes at the beginning of a record
_AROUND = 16  # bytes of a record that are not its data


def write_example_batches(
    path: str | Path,
    batches: Iterable[FeatureBatch | InputBatch[FeatureBatch]],
    dense: Sequence[str] = (),
) -> None:
    """A file with these batches, a message each. An InputBatch also brings its time.

    `dense` names the columns of `FeatureBatch.dense`; without it they are dense_0, dense_1 and so
    on. `fields` are not written.
    """
    write_records(path, (_encoded(batch, dense) for batch in batches))


class ExampleBatches:
    """The batches of files, by number: file after file, each in its order. Thread-safe.

    Patterns are those of `--data`. A task takes `len` and `[number]` for `num_batches` and `batch`.
    If rows are to expire by the times of the batches, `read` and `pieces` bring them. Labels of a
    batch without labels are NaN: it can be predicted, and is refused in training.
    """

    def __init__(self, *patterns: str) -> None:
        self._records: list[tuple[str, int, int]] = []  # (file, begin, end)

        digest = hashlib.sha256()
        for path in found_files(patterns):
            for begin, end in _records_of(path):
                self._records.append((path, begin, end))

            size = os.path.getsize(path)
            digest.update(f"{path} {size}\n".encode())

        if not self._records:
            raise BadData(f"{', '.join(patterns)}: there is no batch")

        self._digest = digest.hexdigest()[:12]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> FeatureBatch:
        return self._drawn(number).batch

    def read(self, index: int, count: int) -> Input[FeatureBatch]:
        """For `FeatureTask.read`: what worker `index` of `count` reads, with times."""
        numbered = NumberedInput(self._drawn, len(self), index, count, 1, self._digest)
        return MappedInput(numbered, _unwrapped)

    def pieces(self) -> Input[FeatureBatch]:
        """For `FeatureTask.pieces`: each batch is one."""
        pieces = NumberedPieces(self._drawn, len(self), f"files={self._digest}")
        return MappedInput(pieces, _unwrapped)

    def _drawn(self, number: int) -> InputBatch[FeatureBatch]:
        path, begin, end = self._records[number]
        where = f"{path}, byte {begin:,}"
        with open(path, "rb") as file:
            file.seek(begin)
            content = file.read(end - begin)

        data, begins, ends = split_records(content, where)
        if not begins.size:
            raise BadData(f"{where}: the file has changed")

        record = data[begins[0] : ends[0]].tobytes()
        decoded = decode_batch(record, where)
        return InputBatch(_batch_of(decoded), b"", decoded.req_time_s, where)


def _unwrapped(drawn: InputBatch[InputBatch[FeatureBatch]]) -> InputBatch[FeatureBatch]:
    read = drawn.batch
    return InputBatch(read.batch, drawn.cursor, read.req_time_s, read.where)


def _records_of(path: str) -> Iterator[tuple[int, int]]:
    """Where each record begins and ends, by the lengths alone."""
    size = os.path.getsize(path)
    begin = 0
    with open(path, "rb") as file:
        while begin < size:
            file.seek(begin)
            length = int.from_bytes(file.read(_LENGTH), "little")
            end = begin + length + _AROUND

            if end > size:
                raise BadData(f"{path}: there is no whole record at byte {begin:,} of {size:,}")

            yield begin, end
            begin = end


def _batch_of(decoded: DecodedBatch) -> FeatureBatch:
    ids = {name: values.as_ids(name) for name, values in decoded.features.items()}
    labels = decoded.labels
    if labels is None:
        labels = np.full(decoded.size, np.nan, np.float32)

    dense = None
    if decoded.dense:
        dense = np.stack(list(decoded.dense.values()), axis=1)

    return FeatureBatch(ids, labels, dense)


def _encoded(given: FeatureBatch | InputBatch[FeatureBatch], dense_names: Sequence[str]) -> bytes:
    drawn = given if isinstance(given, InputBatch) else InputBatch(given, b"")
    batch = drawn.batch
    labels = np.asarray(batch.labels, arrays.VALUE)

    message = pb.ExampleBatch(
        num_examples=labels.size,
        labels=arrays.encode(labels),
        req_time_s=drawn.req_time_s,
    )

    for name, ids in batch.ids.items():
        ragged = Ragged.of(ids)
        message.features.add(
            feature=name,
            integers=arrays.encode(ragged.values),
            row_splits=arrays.encode(ragged.row_splits),
            is_shared=ragged.is_shared,
        )

    if batch.dense is not None:
        columns = np.asarray(batch.dense, arrays.VALUE).T
        names = dense_names or [f"dense_{number}" for number in range(len(columns))]

        if len(names) != len(columns):
            raise ShapeMismatch(f"{len(columns)} dense columns, but {len(names)} names")

        for name, column in zip(names, columns, strict=True):
            message.dense_columns.add(column=name, values=arrays.encode(column))

    encoded = message.SerializeToString()
    decode_batch(encoded, "the batch")  # what cannot be read is not written
    return encoded
