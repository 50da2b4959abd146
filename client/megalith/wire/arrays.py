"""NumPy arrays as bytes: little-endian, row-major, no padding; nothing is copied on the way in."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.errors import InvalidRequest, MalformedArray

KEY = np.dtype("<i8")
VALUE = np.dtype("<f4")
HALF = np.dtype("<f2")
STATUS = np.dtype("i1")
MAX_HALF = np.float32(65504.0)  # beyond it, float16 has only infinity


def as_array(value: object, what: str) -> NDArray[Any]:
    """What a caller gave as an array; InvalidRequest, naming `what`, if NumPy cannot make one of it."""
    try:
        return np.asarray(value)
    except (
        ValueError,
        TypeError,
        OverflowError,
        RuntimeError,
    ) as error:  # such as rows of different lengths
        raise InvalidRequest(f"{what}: not an array of numbers: {error}") from error


def encode(array: NDArray[Any]) -> bytes:
    """The elements as bytes; the array's dtype must be little-endian (every dtype of the wire is)."""
    return array.tobytes()


def to_half(array: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounded to float16; what is beyond its range becomes the largest number that it has."""
    return np.clip(array, -MAX_HALF, MAX_HALF).astype(HALF)


def decode(
    data: bytes | memoryview, dtype: np.dtype[Any], shape: Sequence[int], what: str
) -> NDArray[Any]:
    """A read-only view of `data`. A length that does not fit is MalformedArray, naming `what`."""
    count = math.prod(shape)
    if any(extent < 0 for extent in shape) or len(data) != count * dtype.itemsize:
        raise MalformedArray(
            f"{what}: {len(data)} bytes, but shape {list(shape)} of {dtype.name} needs {count * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def decode_keys(data: bytes | memoryview, what: str) -> NDArray[np.int64]:
    """A read-only view of int64 ids."""
    if len(data) % KEY.itemsize:
        raise MalformedArray(
            f"{what}: {len(data)} bytes is not a multiple of 8; ids are little-endian int64"
        )
    return np.frombuffer(data, KEY)
