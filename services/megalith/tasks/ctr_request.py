"""The examples of a request as the task `ctr` takes them from its files."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from megalith.client import Ragged
from megalith.errors import DtypeMismatch, InvalidRequest, ShapeMismatch, UnknownFeature
from megalith.kernels.dtypes import F32
from megalith.replica.predicting.served_task import FeatureValues, ServedExamples
from megalith.tasks.input.columns import DenseColumn, IdColumn


def requested_ids(
    features: Mapping[str, FeatureValues],
    columns: Sequence[IdColumn],
    trained: Mapping[str, str],
) -> dict[str, Ragged]:
    """Ids by feature, as training makes them of a column: text that is one value is split.

    `trained` are the kinds of the columns, as far as they are known; see `input.schemas`.
    """
    column_by_name = {column.column: column for column in columns}
    ids = {}
    for name, values in features.items():
        column = column_by_name.get(name)
        if column is None:
            raise UnknownFeature(f"no feature {name!r}; there are {sorted(column_by_name)}")

        if name in trained:
            _check_kind(name, values, trained[name])

        ids[name] = _ids(values, column)
        longest = int(np.diff(ids[name].row_splits).max(initial=0))
        if longest > 1 and not column.is_list:
            raise ShapeMismatch(
                f"feature {name}: an example has {longest} values, and one at most in training; "
                "columns of --lists may have several"
            )

    return ids


def requested_dense(examples: ServedExamples, columns: Sequence[DenseColumn], size: int) -> F32:
    """[size, columns], as `examples_of` makes it of a file; NaN in columns that are left out."""
    names = [column.column for column in columns]
    raw = np.full((size, len(columns)), np.nan, np.float32)
    if examples.dense is not None:
        if examples.dense_columns:
            raise InvalidRequest("dense is a matrix and columns by name; give one of them")
        if examples.dense.shape != raw.shape:
            raise ShapeMismatch(
                f"dense is {list(examples.dense.shape)}, expected {list(raw.shape)}: {names}"
            )

        raw[:] = examples.dense

    for name, values in examples.dense_columns.items():
        if name not in names:
            known = f"there are {names}" if names else "the model has none"
            raise UnknownFeature(f"no dense column {name!r}; {known}")
        if values.shape != (size,):
            raise ShapeMismatch(
                f"dense column {name} has {values.size} numbers for {size} examples"
            )

        raw[:, names.index(name)] = values

    for number, column in enumerate(columns):
        raw[:, number] = column.changed(raw[:, number])

    return raw


def _ids(values: FeatureValues, column: IdColumn) -> Ragged:
    """Text without lists is a list that is text, as in a file; the values of lists are whole."""
    is_text = isinstance(values.values, list)
    are_lists = values.row_splits is not None or values.is_shared
    if not column.is_list or not is_text or are_lists:
        return values.hashed()

    what = f"feature {column.column}"
    try:
        texts = pa.chunked_array([pa.array(values.values, pa.large_string())])
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"{what}: {error}; give text as UTF-8") from error

    ids, _ = column.ids(texts, what)
    return ids


def _check_kind(feature: str, values: FeatureValues, trained: str) -> None:
    """DtypeMismatch if no value would find its row."""
    if not len(values.values):
        return

    is_text = isinstance(values.values, list)
    wants_text = trained.endswith("text")
    if is_text == wants_text:
        return

    given = "text" if is_text else "number"
    wanted = "text, such as '5'" if wants_text else "integers, such as 5"
    raise DtypeMismatch(
        f"feature {feature} is {given}, and the model is trained on {trained} there, so no value "
        f"would find its row: 5 and the text '5' are different ids; give {wanted}"
    )
