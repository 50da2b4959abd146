"""What a table reports about itself."""

from dataclasses import dataclass

from megalith.schema.table_counts import TableCounts


@dataclass(slots=True)
class LocalCounts(TableCounts):
    """What one table object counts: what it reports, and how its lookups went."""

    looked_up: int = 0  # ids of lookups
    found: int = 0  # ids of lookups that had a row


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one call did: counts of positions of the batch."""

    created: int = 0
    refused: int = 0
    barred: int = 0
    nonfinite: int = 0
    touched_overflow: int = 0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of the rows that were to be loaded: the four add up to their number."""

    created: int = 0
    replaced: int = 0  # rows that the table had already
    refused: int = 0  # no room
    expired: int = 0  # too old; only if the caller asked for such rows to be dropped
