"""How many rows a table may have: by addresses, and by its budget."""

import os

from megalith.ps.index import MOST_BYTES_PER_ENTRY, SLOT_BYTES
from megalith.ps.rows import FREED_BYTES
from megalith.wire.errors import InvalidSetting
from megalith.wire.schema import TableConfig

_FLOAT_BYTES = 4
_MAX_ROWS = 2**31 - 2  # a slot of the index keeps row + 1 in 31 bits


def addressable_rows(width: int) -> int:
    """Rows that would fill the machine's memory: no table gets larger, so it needs addresses for no more."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1024, min(_MAX_ROWS, physical // (width * _FLOAT_BYTES)))


def rows_within(config: TableConfig, fixed_bytes: int, row_bytes: int) -> int:
    """Rows that fit the budget at any moment, also just after the index grew. An empty table takes `fixed_bytes`."""
    rows = int((config.memory_budget_bytes - fixed_bytes) / (row_bytes + FREED_BYTES + MOST_BYTES_PER_ENTRY))
    if rows < 1:
        raise InvalidSetting(
            f"table {config.name}: memory_budget_bytes {config.memory_budget_bytes} holds no row; "
            f"an empty table takes {fixed_bytes}"
        )
    return rows


def slots_within(config: TableConfig, rows: int, row_bytes: int) -> int:
    """Slots of the index for which the rows leave memory; a hundredth less, for two threads that grow it at once."""
    return int(0.99 * (config.memory_budget_bytes - rows * (row_bytes + FREED_BYTES)) / SLOT_BYTES)
