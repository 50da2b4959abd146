"""The code of an id: a hash that says where the id lives, and the id itself in another spelling.

Three multiplications with shifts between them. The multipliers are secret, odd, and drawn for each
table, so that nobody can choose ids that share a home. The last one alone keeps any two ids apart:
for two different numbers and a random odd multiplier, the chance that the top b bits of the
products are equal is at most 2 / 2^b (Dietzfelbinger's multiply-shift). The ones before it break up
arithmetic sequences, which one multiplication leaves as they are: with two of them, ids that differ
in their top bits only were still such a sequence before the last, and one secret in 300 put them
into long rows. A secret that is only added or xored at the beginning would not do: ids that differ
in bits which the rounds cancel would collide under each such secret.

It is another hash than the one that routes ids to servers, which is fixed: a server sees only ids
of its own range.
"""

import numpy as np

from megalith.engine.kernels.layout import CAPACITY, LAST, PARTITION_BITS, RECORD, U64, Int, Secret
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import inlined, kernel

_SHIFT_1 = np.uint64(32)
_SHIFT_2 = np.uint64(27)
_SHIFT_2_TWICE = np.uint64(54)
_TOP = np.uint64(64 - PARTITION_BITS)
# 4 slots a line
_BITS = np.uint64(PARTITION_BITS)
_32 = np.uint64(32)
_LINE_SHIFT = np.uint64(2)


@inlined
def code_of(secret: Secret, row_id: Int) -> np.uint64:
    """A bijection of 64 bits whose top bits depend on every bit of the id."""
    x = np.uint64(row_id) * secret.multiply_0
    x ^= x >> _SHIFT_1
    x *= secret.multiply_1
    x ^= x >> _SHIFT_2
    x *= secret.multiply_2
    return x


@inlined
def id_of(secret: Secret, code: np.uint64) -> Int:
    """The id whose code it is."""
    x = code * secret.inverse_2
    x ^= (x >> _SHIFT_2) ^ (x >> _SHIFT_2_TWICE)
    x *= secret.inverse_1
    x ^= x >> _SHIFT_1
    return np.int64(x * secret.inverse_0)


@kernel
def ids_of(secret: Secret, codes: U64, out: I64) -> None:
    """out[i] = the id whose code is codes[i]."""
    for i in range(codes.size):
        out[i] = id_of(secret, codes[i])


@inlined
def partition_of(code: np.uint64) -> Int:
    return np.int64(code >> _TOP)


@inlined
def share_of(code: np.uint64) -> np.uint64:
    """Which share of its partition's codes is below it, in units of 2^-32."""
    return (code << _BITS) >> _32


@inlined
def first_code(parts: I64, record: Int, home: Int) -> np.uint64:
    """The smallest code of the partition whose home is this line, or one nearer to its begin."""
    line = np.uint64(parts[record + LAST] - home) >> _LINE_SHIFT
    lines = np.uint64(parts[record + CAPACITY]) >> _LINE_SHIFT
    share = ((line << _32) + lines - np.uint64(1)) // lines
    return (np.uint64(record // RECORD) << _TOP) + (share << (_32 - _BITS))


@inlined
def home_of(parts: I64, record: Int, code: np.uint64) -> Int:
    """The slot where the search for a code begins, the first of a cache line.

    It falls as the code rises.

    It falls further the larger the capacity is, and depends on nothing else that changes: a reader
    who meets a growing partition looks in the wrong place, but never outside of it.
    """
    lines = np.uint64(parts[record + CAPACITY]) >> _LINE_SHIFT
    return parts[record + LAST] - np.int64((share_of(code) * lines) >> _32 << _LINE_SHIFT)
