"""Which tables a file of many tables has, in order: MultiHashTableMetadata, a record for each."""

from pathlib import Path
from typing import NamedTuple

from megalith.checkpoint.monolith.record_files import RecordFile
from megalith.checkpoint.monolith.wire import fields_of
from megalith.errors import CheckpointDamaged


class TableCount(NamedTuple):
    """A table, and how many entries the file has of it."""

    table: str
    entries: int


def counts_in(path: Path) -> list[TableCount]:
    counts = []
    file = RecordFile(path)

    while (records := file.read()) is not None:
        for number in range(records.begins.size):
            record = records.of(number)
            fields = {each.number: each.value for each in fields_of(record, str(path))}

            try:
                table = fields.get(1, b"").decode()
            except UnicodeDecodeError as error:
                raise CheckpointDamaged(f"{path}: the name of a table is no text") from error

            entries = int.from_bytes(fields.get(2, b""), "little")
            counts.append(TableCount(table, entries))

    return counts
