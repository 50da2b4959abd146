"""The code of a key: a hash that says where the key lives, and the key itself in another spelling."""

import numpy as np

from megalith.ps.kernels._jit import inlined, kernel
from megalith.ps.kernels.dtypes import I64
from megalith.ps.kernels.layout import CAPACITY, LAST, PARTITION_BITS, U64, Int

# Odd constants of two rounds of multiply and shift (Pelle Evensen's moremur), and their inverses modulo 2^64. Another
# mixer than the one that routes ids to servers: a server sees only ids whose routing hash is in its range.
_MULTIPLY_1 = np.uint64(0x3C79AC492BA7B653)
_MULTIPLY_2 = np.uint64(0x1C69B3F74AC4AE35)
_INVERSE_1 = np.uint64(pow(0x3C79AC492BA7B653, -1, 1 << 64))
_INVERSE_2 = np.uint64(pow(0x1C69B3F74AC4AE35, -1, 1 << 64))
_SHIFT_1, _SHIFT_2 = np.uint64(32), np.uint64(27)
_SHIFT_2_TWICE = np.uint64(54)
_TOP = np.uint64(64 - PARTITION_BITS)
_BITS, _32, _LINE_SHIFT = np.uint64(PARTITION_BITS), np.uint64(32), np.uint64(2)  # 4 slots a line


@inlined
def code_of(key: Int) -> np.uint64:
    """A bijection of 64 bits whose top bits depend on every bit of the key."""
    x = np.uint64(key)
    x ^= x >> _SHIFT_1
    x *= _MULTIPLY_1
    x ^= x >> _SHIFT_2
    x *= _MULTIPLY_2
    return x


@inlined
def key_of(code: np.uint64) -> Int:
    """The key whose code it is."""
    x = code * _INVERSE_2
    x ^= (x >> _SHIFT_2) ^ (x >> _SHIFT_2_TWICE)
    x *= _INVERSE_1
    return np.int64(x ^ (x >> _SHIFT_1))


@kernel
def keys_of(codes: U64) -> I64:
    keys = np.empty(codes.size, np.int64)
    for i in range(codes.size):
        keys[i] = key_of(codes[i])
    return keys


@inlined
def partition_of(code: np.uint64) -> Int:
    return np.int64(code >> _TOP)


@inlined
def home_of(parts: I64, record: Int, code: np.uint64) -> Int:
    """The slot where the search for a code begins, the first of a cache line; it falls as the code rises.

    It falls further the larger the capacity is, and depends on nothing else that changes: a reader who meets a growing
    partition looks in the wrong place, but never outside of it.
    """
    share = (code << _BITS) >> _32
    lines = np.uint64(parts[record + CAPACITY]) >> _LINE_SHIFT
    return parts[record + LAST] - np.int64((share * lines) >> _32 << _LINE_SHIFT)
