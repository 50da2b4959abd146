"""What a table counts: the one list from which status, metrics and the SDK's statistics are made.

A field here has a field of the same name in TableStatus (protos/parameter_server.proto). One with a
help text is also a metric, `megalith_rows_<name>_total`.
"""

from dataclasses import dataclass, field, fields


def _counter(help: str) -> int:
    """A number that only grows, and what metrics say about it."""
    count: int = field(default=0, metadata={"help": help})
    return count


@dataclass(slots=True)
class TableCounts:
    """One table. Counts are since the table was made; numbers without a help text are as of now."""

    rows: int = 0
    bytes: int = 0  # of rows and index: what a memory budget limits
    created: int = _counter("Rows ever made.")
    refused: int = _counter("Writes of new ids dropped because a memory budget was reached.")
    barred: int = _counter("Writes of new ids dropped by an admission filter.")
    nonfinite: int = _counter(
        "Gradient rows left out because they, or the rows after them, would hold NaN or infinity."
    )
    expired: int = _counter("Rows dropped by age.")
    touched: int = 0  # changed ids in the delta log
    # Who follows the changed ids needs a full copy of the table after this has grown.
    touched_overflow: int = _counter("Changed ids forgotten by full delta logs.")
    max_rows: int = 0  # rows that there are addresses for; a memory budget may allow fewer


NAMES = tuple(each.name for each in fields(TableCounts))
HELP = {each.name: str(each.metadata["help"]) for each in fields(TableCounts) if each.metadata}
