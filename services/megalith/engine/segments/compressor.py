"""Rows of serving tables, which wait for the replicas: the compressed embedding and nothing else.

Segment follows segment without padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.engine.kernels import compress
from megalith.errors import InvalidSetting, MalformedArray, ShapeMismatch
from megalith.kernels.dtypes import F32, I64, U8
from megalith.schema.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit

# see kernels/compress.py
Encode = Callable[[F32, int, int, F32, I64, int, U8], None]
Decode = Callable[[U8, I64, int, int, F32, F32, int], None]


@dataclass(frozen=True, slots=True)
class SegmentCodec:
    """How one segment is stored: two kernels, their parameters and the bytes of `dim` values."""

    dim: int
    encode: Encode
    decode: Decode
    params: F32
    num_bytes: int


def segment_codec(compressor: Compressor, dim: int) -> SegmentCodec:
    """The codec of a segment of `dim` floats."""
    if dim < 1:
        raise InvalidSetting(f"{compressor.name}: a segment of {dim} floats has nothing to store")

    none = np.empty(0, np.float32)
    match compressor:
        case Fp32():
            return SegmentCodec(dim, compress.encode_fp32, compress.decode_fp32, none, 4 * dim)

        case Fp16():
            return SegmentCodec(dim, compress.encode_fp16, compress.decode_fp16, none, 2 * dim)

        case FixedR8(r):
            step = np.float32(r) / np.float32(128)
            unit = np.array([step], np.float32)
            return SegmentCodec(dim, compress.encode_fixed_r8, compress.decode_int8, unit, dim)

        case OneBit():
            unit = np.array([compressor.amplitude], np.float32)
            return SegmentCodec(dim, compress.encode_one_bit, compress.decode_int8, unit, dim)


class RowCodec:
    """A whole row's codec: `dim` floats outside, `row_bytes` bytes inside. It has no state.

    Any thread may use it.
    """

    def __init__(self, segments: Sequence[tuple[Compressor, int]]) -> None:
        """`segments` are compressor and width of each, in order."""
        if not segments:
            raise InvalidSetting("serving rows: a row without segments has nothing to store")

        self._codecs = []
        for compressor, dim in segments:
            self._codecs.append(segment_codec(compressor, dim))

        self.dim = sum(codec.dim for codec in self._codecs)
        self.row_bytes = sum(codec.num_bytes for codec in self._codecs)

    def encode_into(self, vectors: F32, starts: I64, rows: U8) -> None:
        """Compress vectors[i] to the row at byte starts[i] of `rows`; -1 skips it.

        The caller checked `starts`.
        """
        self._check_vectors(vectors, len(starts))
        column = 0
        offset = 0

        for codec in self._codecs:
            codec.encode(vectors, column, codec.dim, codec.params, starts, offset, rows)
            column += codec.dim
            offset += codec.num_bytes

    def decode_from(self, rows: U8, starts: I64, out: F32) -> None:
        """Write the row at byte starts[i] to out[i], zeros where it is -1.

        The caller checked `starts`.
        """
        self._check_vectors(out, len(starts))
        column = 0
        offset = 0

        for codec in self._codecs:
            codec.decode(rows, starts, offset, codec.dim, codec.params, out, column)
            column += codec.dim
            offset += codec.num_bytes

    def encode(self, vectors: F32) -> U8:
        """[n, dim] floats as [n, row_bytes] bytes."""
        rows = np.empty((len(vectors), self.row_bytes), np.uint8)
        starts = self._consecutive(len(vectors))

        flat = rows.reshape(-1)
        self.encode_into(vectors, starts, flat)
        return rows

    def decode(self, rows: U8) -> F32:
        """[n, row_bytes] bytes as [n, dim] floats."""
        is_fitting = rows.ndim == 2 and rows.shape[1] == self.row_bytes
        if rows.dtype != np.uint8 or not is_fitting:
            raise ShapeMismatch(
                f"serving rows: {rows.dtype} of shape {rows.shape}, "
                f"but a row is {self.row_bytes} bytes"
            )

        count = len(rows)
        flat = np.ascontiguousarray(rows).reshape(-1)
        starts = self._consecutive(count)

        out = np.empty((count, self.dim), np.float32)
        self.decode_from(flat, starts, out)
        return out

    def _consecutive(self, count: int) -> I64:
        return np.arange(count, dtype=np.int64) * self.row_bytes

    def _check_vectors(self, vectors: F32, count: int) -> None:
        need = (count, self.dim)
        if vectors.shape != need:
            raise ShapeMismatch(
                f"serving rows: vectors of shape {vectors.shape}, but {need} is needed"
            )

        if vectors.dtype != np.float32 or not vectors.flags.c_contiguous:
            raise MalformedArray(
                f"serving rows: {vectors.dtype} with strides {vectors.strides} "
                "is not packed float32"
            )


def zero_rows(vectors: F32) -> NDArray[np.bool_]:
    """Which vectors are zero, or so small that their squared length is.

    Those are the ones that `skip_zero_embedding` does not store.
    """
    out = np.empty(len(vectors), np.bool_)
    packed = np.ascontiguousarray(vectors)
    compress.find_zero_rows(packed, out)
    return out
