"""What a table reports about itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class TableStats:
    """Counts since the table was made, except `size`, `nbytes`, `max_rows` and `touched`, which are as of now."""

    size: int = 0
    nbytes: int = 0
    max_rows: int = 0  # rows that there are addresses for; a memory budget may allow fewer
    touched: int = 0  # changed ids that nobody asked for yet
    looked_up: int = 0  # ids of lookups
    found: int = 0  # of them
    created: int = 0
    refused: int = 0  # writes of new ids dropped because the table was full
    barred: int = 0  # writes of new ids dropped by the admission filter
    nonfinite: int = 0  # gradient rows left out: they, or the rows after them, were not finite
    expired: int = 0
    touched_overflow: int = (
        0  # touched keys forgotten by the touched set; replicas need a full copy
    )


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

    @property
    def loaded(self) -> int:
        """Rows that are in the table now."""
        return self.created + self.replaced
