"""Whether the columns of one file hold what those of another hold.

The *kind* of a column says which of its values are the same ids: "number", "text", "list of number"
and so on. The number 5 and the text "5" are two ids.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from megalith.errors import BadData
from megalith.tasks.input.blocks import IndexedFile, has_no_values, schema_of
from megalith.tasks.input.columns import IdColumn

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_WITHOUT_VALUES = ("null", "list of null")
_NUMBERS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
)


def columns_of(file: IndexedFile, names: Sequence[str], text_columns: Sequence[str]) -> pa.Schema:
    """The columns of these names; BadData if one is not there."""
    found = schema_of(file, text_columns)
    return selected_columns(found, names, file.path)


def selected_columns(found: pa.Schema, names: Sequence[str], path: str) -> pa.Schema:
    """The columns of these names among those of a file; BadData if one is not there."""
    missing = [name for name in names if name not in found.names]
    if missing:
        lacking = ", ".join(missing)
        known = ", ".join(found.names)
        raise BadData(f"{path} has no column {lacking}; it has {known}")

    check_once(found, names, path)
    return pa.schema([found.field(name) for name in names])


def check_once(found: pa.Schema, names: Sequence[str], path: str) -> None:
    """BadData if several columns of a file have one of these names: nobody knows which is meant."""
    for name in names:
        count = found.names.count(name)
        if count > 1:
            raise BadData(f"{path} has {count} columns {name}; rename them in the file")


def check_alike(
    file: IndexedFile, schema: pa.Schema, text_columns: Sequence[str], elsewhere: str
) -> None:
    """BadData if the file lacks a column, or has ids of another kind there than `elsewhere`.

    The number 5 and the text "5" are two ids. A file without rows has no ids of any kind, and
    neither has a column of a type without values, as some writers choose if all of it is missing.
    """
    if not sum(file.rows):
        return

    found = columns_of(file, schema.names, text_columns)
    for field in schema:
        its_field = found.field(field.name)
        kind = its_field.type
        if file.is_text and pa.types.is_floating(field.type):
            continue  # it is read as numbers, whatever its first block looks like
        if has_no_values(its_field) and _family(field.type) == "number":
            continue  # nor does its first block say that it is text

        if not _fit_together(kind, field.type):
            raise BadData(
                f"{file.path}: column {field.name} is {kind}, but {field.type} in {elsewhere}"
            )


def differences(
    file: IndexedFile, schema: pa.Schema, text_columns: Sequence[str], elsewhere: str
) -> list[str]:
    """How the columns of a file differ from these, a sentence for each; see `check_alike`."""
    if not sum(file.rows):
        return []

    found = schema_of(file, text_columns)
    check_once(found, found.names, file.path)
    lines = []
    for field in schema:
        if field.name not in found.names:
            lines.append(f"{file.path} has no column {field.name}, and {elsewhere} has it")
            continue

        kind = found.field(field.name).type
        if not _fit_together(kind, field.type):
            lines.append(
                f"{file.path}: column {field.name} is {kind}, but {field.type} in {elsewhere}"
            )

    for name in found.names:
        if name not in schema.names:
            lines.append(f"{file.path} has a column {name}, and {elsewhere} has none")

    return lines


def with_wide_numbers(schema: pa.Schema, numbers: Collection[str]) -> pa.Schema:
    """The schema with float64 for integers among these columns, and for those without any value.

    Text and JSON know no types: the first rows say nothing of those that follow.
    """
    fields = []
    for field in schema:
        is_narrow = pa.types.is_integer(field.type) or has_no_values(field)
        is_widened = is_narrow and field.name in numbers

        fields.append(field.with_type(pa.float64()) if is_widened else field)

    return pa.schema(fields)


def with_trained_numbers(
    schema: pa.Schema, columns: Sequence[IdColumn], trained: Mapping[str, str]
) -> pa.Schema:
    """The schema with int64 for ids without any value, where the model is trained on numbers."""
    numbers = [column.column for column in columns if trained.get(column.column) == "number"]
    fields = []
    for field in schema:
        is_number = has_no_values(field) and field.name in numbers

        fields.append(field.with_type(pa.int64()) if is_number else field)

    return pa.schema(fields)


def kinds_of(schema: pa.Schema, columns: Sequence[IdColumn]) -> dict[str, str]:
    """The kind of each of these columns; a column of a type that has no values has none."""
    kinds = {}
    for column in columns:
        kind = _family(schema.field(column.column).type)
        if kind in _WITHOUT_VALUES:
            continue

        is_split = column.is_list and kind == "text"
        kinds[column.column] = "list of text" if is_split else kind

    return kinds


def text_among(kinds: Mapping[str, str], text_columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that are text in files that know no types: those told, and those of the kind."""
    known = [name for name, kind in kinds.items() if kind in ("text", "list of text")]
    return tuple(dict.fromkeys([*text_columns, *known]))


def check_kinds(
    path: str, schema: pa.Schema, columns: Sequence[IdColumn], trained: Mapping[str, str]
) -> None:
    """BadData if a column has ids of another kind than those that the model is trained on.

    No value of it would find the row of that value. A column that `trained` does not know is new.
    """
    for name, kind in kinds_of(schema, columns).items():
        expected = trained.get(name, kind)
        if kind != expected:
            raise BadData(
                f"{path}: column {name} is {kind}, and the model is trained on {expected} there, "
                "so no value would find its row: 5 and the text '5' are different ids; write the "
                f"column as {expected}, or train a new model in another --model-dir. In CSV and "
                f"TSV, --text {name} of the training reads numbers as text"
            )


def with_values(
    schema: pa.Schema, files: Iterable[IndexedFile], text_columns: Sequence[str]
) -> pa.Schema:
    """The schema with the types of these files for columns whose own type has no values.

    So the files after them are compared with these: a file of a stream may be the first with any.
    """
    for file in files:
        lacking = [field.name for field in schema if _family(field.type) in _WITHOUT_VALUES]
        if not lacking:
            return schema

        found = schema_of(file, text_columns)
        for name in lacking:
            number = schema.get_field_index(name)
            if name in found.names:
                schema = schema.set(number, found.field(name))

    return schema


def _fit_together(one: pa.DataType, other: pa.DataType) -> bool:
    families = {_family(one), _family(other)}
    return len(families) == 1 or not families.isdisjoint(_WITHOUT_VALUES)


def _family(kind: pa.DataType) -> str:
    """Types whose equal values are the same ids."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)

    if any(is_one(kind) for is_one in _LISTS):
        return f"list of {_family(kind.value_type)}"
    if any(is_one(kind) for is_one in _TEXTS):
        return "text"
    if any(is_one(kind) for is_one in _NUMBERS):
        return "number"
    if pa.types.is_timestamp(kind):  # of any unit
        return "timestamp" if kind.tz is None else f"timestamp of {kind.tz}"

    return str(kind)
