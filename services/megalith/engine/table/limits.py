"""How many rows a table may have: by the machine's memory, by addresses, and by its budget."""

import logging
import os

from megalith.engine.kernels.layout import GROW_AT, UNLIMITED, Secret
from megalith.engine.table.index import ADDRESS_BYTES, MOST_BYTES_PER_ENTRY, SLOT_BYTES, IndexMemory
from megalith.engine.table.reservation import ADDRESSES, Addresses, Reservation
from megalith.engine.table.rows import FREED_BYTES, RowMemory
from megalith.errors import InvalidSetting, LimitExceeded
from megalith.kernels.dtypes import F32
from megalith.schema import TableConfig

logger = logging.getLogger(__name__)

_MAX_ROWS = 2**31 - 2  # a slot of the index keeps row + 1 in 31 bits
_LEAST_ROWS = 1024
_MAPPINGS = 3 * Reservation.MAPPINGS  # of a table: rows, freed rows, index
_SHARE_OF_MAPPINGS = 0.75  # the rest is for threads, the heap, libraries and files


def physical_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reserve(
    config: TableConfig, template: F32, secret: Secret, addresses: Addresses = ADDRESSES
) -> tuple[RowMemory, IndexMemory]:
    """Addresses for the rows of a table and for its index; `addresses` are those of the process.

    They are enough for as many rows as fill the machine's memory. Beside many tables they may be
    fewer, which is logged, but never fewer than `initial_capacity`. More tables than the system has
    mappings for, or addresses that it refuses, are a LimitExceeded. An `initial_capacity` beyond
    the memory is an InvalidSetting.
    """
    row_bytes = template.size * template.itemsize
    _check_initial_capacity(config, row_bytes)
    num_tables = addresses.mappings // _MAPPINGS
    most_tables = int(_SHARE_OF_MAPPINGS * addresses.most_mappings) // _MAPPINGS
    if num_tables >= most_tables:
        raise LimitExceeded(
            f"table {config.name}: this process has {num_tables} tables, as many as "
            f"vm.max_map_count {addresses.most_mappings} allows; raise it with sysctl, or put the "
            "ids of several tables into one"
        )

    wanted = max(_LEAST_ROWS, min(_MAX_ROWS, physical_bytes() // row_bytes))
    least = max(_LEAST_ROWS, config.initial_capacity)
    affordable = addresses.share(num_tables) // (row_bytes + FREED_BYTES + ADDRESS_BYTES)
    rows = max(least, min(wanted, affordable))

    while True:
        try:
            row_memory = RowMemory(template, rows)
            index_memory = IndexMemory(rows, config.initial_capacity, secret)
            break
        except OSError as error:
            if rows <= least:
                raise LimitExceeded(
                    f"table {config.name}: the system refuses addresses for {rows} rows ({error}), "
                    f"beside {num_tables} tables; look at `ulimit -v`, vm.overcommit_memory and "
                    "vm.max_map_count"
                ) from error

            rows = max(least, rows // 2)

    if rows < wanted:
        logger.warning(
            "fewer rows have addresses than memory would hold; to get more, create the table "
            "before others or give it an initial_capacity "
            "table=%s max_rows=%d memory_rows=%d tables=%d",
            config.name,
            rows,
            wanted,
            num_tables + 1,
        )

    return row_memory, index_memory


def _check_initial_capacity(config: TableConfig, row_bytes: int) -> None:
    rows = config.initial_capacity
    bytes_of_a_row = row_bytes + SLOT_BYTES / GROW_AT
    need = int(rows * bytes_of_a_row)

    if rows > _MAX_ROWS or need > physical_bytes():
        raise InvalidSetting(
            f"table {config.name}: initial_capacity {rows} takes {need} bytes; this machine has "
            f"{physical_bytes()}, and a table has {_MAX_ROWS} rows at most. A table grows by "
            "itself: give it less"
        )


def limits(config: TableConfig, memory: RowMemory, fixed_bytes: int) -> tuple[int, int]:
    """Rows that a table may have, and slots of its index.

    The budget holds also just after the index grew. An empty table takes `fixed_bytes`. A budget
    that holds no row is an InvalidSetting.
    """
    budget = config.memory_budget_bytes
    if not budget:
        return memory.max_rows, UNLIMITED

    row_bytes = memory.row_bytes + FREED_BYTES
    rows = int((budget - fixed_bytes) / (row_bytes + MOST_BYTES_PER_ENTRY))
    if rows < 1:
        raise InvalidSetting(
            f"table {config.name}: memory_budget_bytes {budget} holds no row; "
            f"an empty table takes {fixed_bytes}"
        )

    slots = (budget - rows * row_bytes) // SLOT_BYTES
    return rows, slots
