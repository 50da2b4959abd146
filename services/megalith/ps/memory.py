"""How many rows a table may have: by addresses, and by its budget."""

import os

from megalith.ps.index import MOST_BYTES_PER_ENTRY, SLOT_BYTES
from megalith.ps.kernels.layout import UNLIMITED
from megalith.ps.rows import FREED_BYTES, RowMemory
from megalith.wire.errors import InvalidSetting
from megalith.wire.schema import TableConfig

_FLOAT_BYTES = 4
_MAX_ROWS = 2**31 - 2  # a slot of the index keeps row + 1 in 31 bits


def addressable_rows(width: int) -> int:
    """Rows that would fill the machine's memory: no table gets larger, so it needs addresses for no more."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1024, min(_MAX_ROWS, physical // (width * _FLOAT_BYTES)))


def limits(config: TableConfig, memory: RowMemory, fixed_bytes: int) -> tuple[int, int]:
    """Rows that a table may have, and slots of its index: the budget holds also just after the index grew.

    An empty table takes `fixed_bytes`. A budget that holds no row is an InvalidSetting.
    """
    budget = config.memory_budget_bytes
    if not budget:
        return memory.max_rows, UNLIMITED
    row_bytes = memory.row_bytes + FREED_BYTES
    rows = int((budget - fixed_bytes) / (row_bytes + MOST_BYTES_PER_ENTRY))
    if rows < 1:
        raise InvalidSetting(
            f"table {config.name}: memory_budget_bytes {budget} holds no row; an empty table takes {fixed_bytes}"
        )
    # A hundredth less than the rows leave, for two threads that grow the index at once.
    return rows, int(0.99 * (budget - rows * row_bytes) / SLOT_BYTES)
