"""Messages of a stream to columns: JSON objects, one for each message."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.json

from megalith.errors import BadData


@dataclass(frozen=True, slots=True)
class Message:
    """What a topic holds at an offset of a partition. `time_ms` is when it was written, or 0."""

    value: bytes | None
    partition: int
    offset: int
    time_ms: int = 0


def table_of(messages: Sequence[Message], schema: pa.Schema | None) -> pa.Table:
    """A row for each message, in their order, with the columns of the schema.

    A field that a message lacks is missing there; fields that the schema does not have are passed
    over. Without a schema, columns and types are those that the messages show. A message that is
    no JSON object, or has another type, raises ArrowInvalid.
    """
    values = [message.value or b"" for message in messages]
    content = b"\n".join(values)
    has_breaks_inside = content.count(b"\n") >= len(values)

    if schema is None:
        parse = pa.json.ParseOptions(newlines_in_values=has_breaks_inside)
    else:
        parse = pa.json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="ignore",
            newlines_in_values=has_breaks_inside,
        )

    read = pa.json.ReadOptions(use_threads=False, block_size=len(content) + 1)
    table = pa.json.read_json(pa.BufferReader(content), read_options=read, parse_options=parse)

    if table.num_rows != len(values):
        raise pa.ArrowInvalid(f"{table.num_rows} JSON objects in {len(values)} messages")

    if schema is not None:
        table.validate(full=True)  # the parser takes any bytes for text, and ids want UTF-8

    return table


def readable(
    messages: Sequence[Message], read: Callable[[Sequence[Message]], object]
) -> tuple[list[Message], list[Message]]:
    """(those that `read` takes, those for which it raises), in their order.

    Halves are tried until they are good or a single message: a few bad ones cost few calls.
    """
    try:
        read(messages)
        return list(messages), []
    except (pa.ArrowException, BadData):
        if len(messages) == 1:
            return [], list(messages)

    half = len(messages) // 2
    good, bad = readable(messages[:half], read)
    more_good, more_bad = readable(messages[half:], read)
    return good + more_good, bad + more_bad


def sample_of(messages: Sequence[Message], where: str, numbers: Collection[str] = ()) -> pa.Table:
    """The columns and types that messages show.

    A column that is always null is text, or float64 if it is one of `numbers`.
    """
    try:
        table = table_of(messages, None)
    except pa.ArrowException as error:
        raise BadData(f"{where}: the messages are not JSON objects of one kind: {error}") from error

    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_null(kind):
            kind = pa.float64() if field.name in numbers else pa.string()

        fields.append(field.with_type(kind))

    return table.cast(pa.schema(fields))
