"""Files to predict: their blocks in order, whether they have labels or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from megalith.tasks.input.blocks import IndexedFile, read_block, schema_of
from megalith.tasks.input.examples import DataColumns, Examples, examples_of
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.schemas import (
    check_kinds,
    selected_columns,
    with_trained_numbers,
    with_wide_numbers,
)


@dataclass(frozen=True, slots=True)
class UnlabelledBlock:
    """Examples of a block. If it has no labels, or all are missing, those here are zeros.

    `fields` has the columns that were asked for, as the file has them.
    """

    examples: Examples
    fields: pa.Table
    has_labels: bool


def blocks_to_predict(
    index: DataIndex,
    columns: DataColumns,
    text_columns: Sequence[str],
    fields: Sequence[str],
    kinds: Mapping[str, str],
) -> Iterator[UnlabelledBlock]:
    """All blocks of all files, in their order; BadData if a column is of another of `kinds`."""
    label = columns.label.column
    for block in index.blocks:
        found = _schema(block.file, columns, text_columns, fields)
        schema = with_trained_numbers(found, columns.ids, kinds)
        check_kinds(block.file.path, schema, columns.ids, kinds)
        table = read_block(block.file, block.number, schema)
        selected = table.select(list(fields))
        has_labels = _has_labels(table, label)
        if not has_labels:
            if label in table.column_names:
                table = table.drop_columns(label)

            zeros = np.zeros(table.num_rows, np.float32)
            table = table.append_column(label, pa.array(zeros))

        examples = examples_of(table, columns, block.where)
        yield UnlabelledBlock(examples, selected, has_labels)


def _has_labels(table: pa.Table, label: str) -> bool:
    """Whether there is a column of them with any value."""
    if label not in table.column_names:
        return False

    return bool(table.column(label).null_count < table.num_rows)


def _schema(
    file: IndexedFile, columns: DataColumns, text_columns: Sequence[str], fields: Sequence[str]
) -> pa.Schema:
    found = schema_of(file, text_columns)
    wanted = list(dict.fromkeys([*columns.names, *fields]))

    label = columns.label.column
    is_label_needed = label in fields or label in found.names
    if not is_label_needed:
        wanted.remove(label)

    selected = selected_columns(found, wanted, file.path)
    return with_wide_numbers(selected, columns.numbers) if file.is_text else selected
