"""What a program gives, as the arrays of a request."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import Ragged
from megalith.errors import DtypeMismatch, InvalidRequest, ShapeMismatch
from megalith.protos import prediction_pb2 as pb
from megalith.schema.checks import as_array
from megalith.wire import arrays, codec

# Of one feature: integers, or text, or lists of them.
Values = Ragged | ArrayLike | Sequence[str] | Sequence[Sequence[str]]
Dense = ArrayLike | Mapping[str, ArrayLike]


def ids_of(table: str, values: ArrayLike) -> NDArray[np.int64]:
    """Ids of a lookup."""
    if not isinstance(table, str):
        raise InvalidRequest(f"a table is named by a str, not by {table!r}")

    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"table {table}: ids must be whole numbers: {error}") from error

    are_numbers = array.size == 0 or array.dtype.kind in "iu"
    if array.ndim != 1 or not are_numbers:
        raise InvalidRequest(
            f"table {table}: ids must be whole numbers in one dimension, "
            f"not {array.dtype} of shape {array.shape}"
        )

    return np.ascontiguousarray(array, np.int64)


def features_to_proto(features: Mapping[str, Values]) -> list[pb.FeatureValues]:
    """The values of each feature."""
    if not isinstance(features, Mapping):
        raise InvalidRequest(
            f"features must be a mapping from feature to values, not {type(features).__name__}"
        )

    messages = []
    for name, values in features.items():
        if not isinstance(name, str):
            raise InvalidRequest(f"a feature is named by a str, not by {name!r}")

        try:
            messages.append(_feature_to_proto(name, values))
        except InvalidRequest as error:
            reason = _reason_of_none(values) or str(error)
            raise type(error)(f"feature {name}: {reason}") from error

    return messages


def _reason_of_none(values: Values) -> str:
    """How to say that an example has no value, where None was given; empty if none was."""
    examples = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(examples, list | tuple):
        return ""

    for number, value in enumerate(examples):
        given = value if isinstance(value, list | tuple) else (value,)
        if any(each is None for each in given):
            return (
                f"example {number} has None; give lists, and an empty one for an example without a "
                "value: [[5], []]"
            )

    return ""


def _feature_to_proto(name: str, values: Values) -> pb.FeatureValues:
    texts = _texts(values)
    if texts is not None:
        return _texts_to_proto(name, texts)

    ragged = _ragged(values)
    return pb.FeatureValues(
        feature=name,
        integers=arrays.encode(ragged.values),
        row_splits=arrays.encode(ragged.row_splits),
        is_shared=ragged.is_shared,
    )


def _ragged(values: Values) -> Ragged:
    if isinstance(values, Ragged):
        return values

    try:
        return Ragged.of(values)
    except DtypeMismatch as error:
        raise DtypeMismatch(f"{values!r:.60}: give whole numbers, or text") from error


def _texts(values: Values) -> list[Any] | None:
    """Text, or lists of it; None for anything else."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "USO":
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return None

    for value in values:
        first = value
        if isinstance(value, list | tuple):
            if not value:
                continue  # the next one may tell

            first = value[0]

        return list(values) if isinstance(first, str | bytes) else None

    return None


def _texts_to_proto(name: str, values: list[Any]) -> pb.FeatureValues:
    """Of each example one value, or a list of them.

    Only lists have splits: one value may be a list that is text, which the replica then splits.
    """
    if isinstance(values[0], str | bytes):
        return pb.FeatureValues(feature=name, texts=[_as_bytes(value) for value in values])

    texts = []
    ends = [0]
    for each in values:
        if not isinstance(each, list | tuple):
            raise InvalidRequest(f"{each!r} is among lists; give a list for each example")

        texts += [_as_bytes(value) for value in each]
        ends.append(len(texts))

    splits = np.array(ends, np.int64)
    return pb.FeatureValues(feature=name, texts=texts, row_splits=arrays.encode(splits))


def _as_bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise DtypeMismatch(f"{value!r} is among text; 5 and '5' are different values")

    return value.encode()


def set_dense(request: pb.PredictRequest, dense: Dense | None) -> None:
    """Columns by name, or a matrix."""
    if dense is None:
        return

    if not isinstance(dense, Mapping):
        matrix = _floats(dense, "dense", 2)
        request.dense.CopyFrom(codec.array_to_proto(matrix))
        return

    for name, values in dense.items():
        column = _floats(_with_nan(values), f"dense column {name}", 1)
        request.dense_columns.add(column=name, values=arrays.encode(column))


def _with_nan(values: ArrayLike) -> ArrayLike:
    """The numbers of a column: None, a number that is missing, is sent as NaN."""
    if not isinstance(values, list | tuple | np.ndarray):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values

    return [np.nan if value is None else value for value in values]


def _floats(values: ArrayLike, what: str, ndim: int) -> NDArray[np.float32]:
    array = as_array(values, what)
    are_numbers = array.dtype.kind in "biuf"
    if array.size and not are_numbers:
        raise DtypeMismatch(f"{what}: {array.dtype} are no numbers")

    if array.ndim != ndim:
        raise ShapeMismatch(f"{what} has shape {list(array.shape)}, expected {ndim} dimensions")

    return np.ascontiguousarray(array, np.float32)
