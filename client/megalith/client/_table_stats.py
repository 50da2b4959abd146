"""What servers report about their tables, added up."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from megalith.protos import parameter_server_pb2 as pb


@dataclass(frozen=True, slots=True)
class TableStats:
    """One table on all servers together. Counts are since each server started."""

    rows: int = 0
    bytes: int = 0  # of rows and index
    created: int = 0
    refused: int = 0  # writes of new ids dropped because the memory budget was reached
    barred: int = 0  # writes of new ids dropped by the admission filter
    nonfinite: int = 0  # gradient rows left out: they, or the rows after them, would hold NaN or infinity
    expired: int = 0
    touched: int = 0  # changed ids that nobody asked for yet; 0 also if they are not tracked
    touched_overflow: int = 0  # changed ids that were forgotten: who follows them needs a full copy
    max_rows: int = 0  # rows that all servers together have addresses for; a memory budget may allow fewer


def by_table(answers: Iterable[pb.GetPsStatusResponse]) -> dict[str, TableStats]:
    """The sums over all servers, by the names of the tables, in their order."""
    counts: dict[str, dict[str, int]] = {}
    for answer in answers:
        for table in answer.tables:
            held = counts.setdefault(table.config.name, dict.fromkeys(_NAMES, 0))
            for name in _NAMES:
                held[name] += getattr(table, name)
    return {name: TableStats(**counts[name]) for name in sorted(counts)}


_NAMES = tuple(field.name for field in fields(TableStats))
