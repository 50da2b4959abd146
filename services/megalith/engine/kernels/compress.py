"""Segments of serving rows, which wait for the replicas: one to four bytes a value.

What goes in and comes out is float32.

    encode(vectors, column, dim, params, starts, offset, rows)    vectors[i, column : column + dim]
    -> bytes of row i decode(rows, starts, offset, dim, params, out, column)        and back

    rows     bytes of all rows, flat             starts   byte offset of each row, -1 = no such row
    offset   of the segment in a row, in bytes

Encoding skips a row of start -1; decoding gives zeros for it.
"""

import numpy as np

from megalith.engine.kernels.prefetch import prefetch
from megalith.engine.kernels.unaligned import load_float, load_half, store_float, store_half
from megalith.kernels.dtypes import F32, I64, U8, Bools
from megalith.kernels.jit import kernel

FLOAT32_TINY = np.float32(1.17549435e-38)
AHEAD = 16  # rows are random, and compressed ones mostly fit in one cache line each


@kernel
def quantize(x: np.float32, spacing: np.float32) -> np.float32:
    """The number of spacings nearest to x, halves away from zero, in [-128, 127]; NaN is 0.

    Clamped before it becomes an integer, so that large values saturate instead of being undefined.
    """
    half = spacing * np.float32(0.5)
    away = x + half if x >= 0 else x - half
    scaled = np.trunc(away / spacing)
    clamped = min(max(scaled, np.float32(-128)), np.float32(127))
    return clamped if x == x else np.float32(0)


@kernel
def encode_fp32(
    vectors: F32, column: int, dim: int, params: F32, starts: I64, offset: int, rows: U8
) -> None:
    """No params."""
    for i in range(starts.size):
        if starts[i] >= 0:
            at = np.uint64(starts[i] + offset)
            first = np.uint64(column)
            for j in range(np.uint64(dim)):
                store_float(rows, at + np.uint64(4) * j, vectors[i, first + j])


@kernel
def decode_fp32(
    rows: U8, starts: I64, offset: int, dim: int, params: F32, out: F32, column: int
) -> None:
    """No params."""
    for i in range(starts.size):
        if i + AHEAD < starts.size:
            prefetch(rows, starts[i + AHEAD] + offset)
        at = np.uint64(starts[i] + offset)
        first = np.uint64(column)
        if starts[i] < 0:
            out[i, column : column + dim] = 0
            continue
        for j in range(np.uint64(dim)):
            out[i, first + j] = load_float(rows, at + np.uint64(4) * j)


@kernel
def encode_fp16(
    vectors: F32, column: int, dim: int, params: F32, starts: I64, offset: int, rows: U8
) -> None:
    """No params."""
    for i in range(starts.size):
        if starts[i] >= 0:
            at = np.uint64(starts[i] + offset)
            first = np.uint64(column)
            for j in range(np.uint64(dim)):
                store_half(rows, at + np.uint64(2) * j, vectors[i, first + j])


@kernel
def decode_fp16(
    rows: U8, starts: I64, offset: int, dim: int, params: F32, out: F32, column: int
) -> None:
    """No params."""
    for i in range(starts.size):
        if i + AHEAD < starts.size:
            prefetch(rows, starts[i + AHEAD] + offset)
        at = np.uint64(starts[i] + offset)
        first = np.uint64(column)
        if starts[i] < 0:
            out[i, column : column + dim] = 0
            continue
        for j in range(np.uint64(dim)):
            out[i, first + j] = load_half(rows, at + np.uint64(2) * j)


@kernel
def encode_fixed_r8(
    vectors: F32, column: int, dim: int, params: F32, starts: I64, offset: int, rows: U8
) -> None:
    """Params: the spacing, r/128."""
    spacing = params[0]
    for i in range(starts.size):
        if starts[i] >= 0:
            at = np.uint64(starts[i] + offset)
            first = np.uint64(column)
            for j in range(np.uint64(dim)):
                rows[at + j] = np.uint8(np.int32(quantize(vectors[i, first + j], spacing)))


@kernel
def encode_one_bit(
    vectors: F32, column: int, dim: int, params: F32, starts: I64, offset: int, rows: U8
) -> None:
    """No params.

    Amplitude and scale are positive, so the sign of amplitude * tanh(scale * x) is that of x.
    """
    plus = np.uint8(1)
    minus = np.uint8(255)
    for i in range(starts.size):
        if starts[i] >= 0:
            at = np.uint64(starts[i] + offset)
            first = np.uint64(column)
            for j in range(np.uint64(dim)):
                rows[at + j] = plus if vectors[i, first + j] > 0 else minus


@kernel
def decode_int8(
    rows: U8, starts: I64, offset: int, dim: int, params: F32, out: F32, column: int
) -> None:
    """Params: what one unit is worth, the spacing of fixed_r8 or the amplitude of one_bit."""
    unit = params[0]
    for i in range(starts.size):
        if i + AHEAD < starts.size:
            prefetch(rows, starts[i + AHEAD] + offset)
        at = np.uint64(starts[i] + offset)
        first = np.uint64(column)
        if starts[i] < 0:
            out[i, column : column + dim] = 0
            continue
        for j in range(np.uint64(dim)):
            out[i, first + j] = np.float32(np.int8(rows[at + j])) * unit


@kernel
def find_zero_rows(vectors: F32, out: Bools) -> None:
    """Mark the vectors whose squared length is zero or denormal; NaN is not."""
    for i in range(vectors.shape[0]):
        square = np.float32(0)
        for j in range(vectors.shape[1]):
            square += vectors[i, j] * vectors[i, j]
        out[i] = square < FLOAT32_TINY
