"""NumPy arrays as bytes: little-endian, row-major, no padding; nothing is copied on the way in."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.errors import MalformedArray

ID = np.dtype("<i8")
VALUE = np.dtype("<f4")
HALF = np.dtype("<f2")
STATUS = np.dtype("i1")
MAX_HALF = np.float32(65504.0)  # beyond it, float16 has only infinity


def encode(array: NDArray[Any]) -> bytes:
    """The elements as bytes.

    The array's dtype must be little-endian (every dtype of the wire is).
    """
    return array.tobytes()


def to_half(array: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounded to float16; what is beyond its range becomes the largest number that it has."""
    return np.clip(array, -MAX_HALF, MAX_HALF).astype(HALF)


def decode(
    data: bytes | memoryview, dtype: np.dtype[Any], shape: Sequence[int], what: str
) -> NDArray[Any]:
    """A read-only view of `data`. A length that does not fit is MalformedArray, naming `what`."""
    needed = math.prod(shape) * dtype.itemsize
    has_negative = any(extent < 0 for extent in shape)

    if has_negative or len(data) != needed:
        wanted = f"shape {list(shape)} of {dtype.name} needs {needed}"
        raise MalformedArray(f"{what}: {len(data)} bytes, but {wanted}")

    flat = np.frombuffer(data, dtype)
    return flat.reshape(shape)


def decode_ids(data: bytes | memoryview, what: str) -> NDArray[np.int64]:
    """A read-only view of int64 ids."""
    if len(data) % ID.itemsize:
        raise MalformedArray(
            f"{what}: {len(data)} bytes is not a multiple of 8; ids are little-endian int64"
        )

    return np.frombuffer(data, ID)
