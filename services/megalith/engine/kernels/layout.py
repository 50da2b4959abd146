"""Dtypes, record layouts and sentinels that the kernels share.

A slot of the index is two 64-bit words, four slots to a cache line:

    slots[2*i]     the id's code (codes.py, a bijection: the id itself is not stored)
    slots[2*i+1]   last update, Unix seconds << 32 | touched << 31 | row + 1    0 = the slot is free

Zero means free, so fresh pages of the operating system are an empty index. The time sits in the
slot because every update has that cache line at hand; an array of times beside the rows would cost
one more miss per id. So does the touched bit: a row that has it is in the set of touched ids
already, and an update need not look there.

The index is cut into PARTITIONS by the top bits of the code. Each has a record of RECORD int64 in
`parts`, one pair of cache lines, so that two threads at work in neighbouring partitions do not
share a line.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.dtypes import F32, I64

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
# An int to the caller, an int64 to the compiler; naming either makes every cast of the other an
# error
Int = Any

PARTITION_BITS = (
    5  # 32 writers may be at work in one table, and a growing partition holds up 3 % of the ids
)
PARTITIONS = 1 << PARTITION_BITS

RECORD = 16  # int64 per partition
VERSION = 0  # odd: a writer is inside; a reader whose version changed meanwhile reads again
LAST = (
    1  # the first slot of the partition's last home line, behind which the spill follows; constant
)
CAPACITY = 2  # slots of home lines, a multiple of LINE: they end with the line at LAST
USED = 3  # slots taken
ROOM = 4  # the largest CAPACITY that the reserved addresses allow; constant
SPILL = 5  # slots past the last home line; the last line of them stays free, so every search ends
# A slot that was filled more than FAR_AWAY slots behind its id's home; 0 = none since the last
# look
FAR = 6

LINE = 4  # slots in a cache line
LEAST_SPILL = 256  # slots of a spill at first (one page)
MOST_SPILL = (
    1 << 20
)  # slots that a spill has addresses for; needed only by ids chosen by someone who knows the secret
# Slots between the home of an id and the line that has it. With codes that are spread evenly the
# chance of as much is e^-43 at 0.8 full, so it says that they are not: rows come in the order of
# their codes, as a dump gives them.
FAR_AWAY = 512
PAGE = 1 << 17  # slots in a huge page
# A partition fills to this share of CAPACITY. With larger steps it can be fuller at their ends for
# the same mean.
GROW_AT = 0.8
# A partition stretches in place by this, and to the end of a huge page if it has one: 0.6 full on
# average, 27 bytes an entry at 10 M. While a table fills, an entry moves 1.3 times, at 8 ns each
# (2.7 times with 0.7 and 1.3).
GROWTH = 1.7

# The pool of rows.
POOL_LATCH = 0  # 1 while a thread takes or gives rows
POOL_NEXT = 1  # rows ever taken: the first one never used
POOL_FREE = 2  # rows in the stack of freed ones
POOL_LIMIT = 3  # rows that the budget and the reserved addresses allow
POOL_SLOTS = 4  # slots of all partitions together that the budget allows
POOL_NEWEST_S = 5  # the table's newest data time: that of rows which are made without a time
POOL_GROWING = 6  # 1 while a thread claims slots for a partition that grows
UNLIMITED = 1 << 62
POOL = 16  # int64 in the record

BLOCK = (
    64  # ids of a lookup whose cache misses overlap; 32 and 128 are within 3 % of it at 10 M rows
)
WRITE_BLOCK = 128  # ids written under a latch, about 10 us; with 64 inserts take 10 ns more each


class Secret(NamedTuple):
    """What makes the codes of one table unlike those of any other (codes.py).

    They are odd numbers, and their inverses.
    """

    multiply_0: np.uint64
    multiply_1: np.uint64
    multiply_2: np.uint64
    inverse_0: np.uint64
    inverse_1: np.uint64
    inverse_2: np.uint64


class Index(NamedTuple):
    """Where every id is: slots as above, the partitions' records, and what codes are made with."""

    slots: U64
    parts: I64
    secret: Secret


class Rows(NamedTuple):
    """Row r is values[r*width : (r+1)*width]: the embedding, then the optimizers' state."""

    values: F32
    template: F32  # a new row, before random initializers; its size is the width
    pool: I64
    freed: U32  # a stack of rows to use again
