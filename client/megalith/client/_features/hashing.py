"""The one hash from raw values to ids of a slot.

It is the same in every process, on every machine and in every version.

    integers    code = value, as 64 bits (two's complement)
    strings     code = 64-bit FNV-1a of the bytes; text is UTF-8
    id          top `bits` bits of mix64(code + 0x9E3779B97F4A7C15)

`mix64` is the splitmix64 finalizer, as in megalith.wire.routing. Checkpoints hold the ids, so none
of this may change.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import InvalidRequest
from megalith.schema.checks import as_array
from megalith.schema.fids import V2
from megalith.wire.routing import mix64

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64: it keeps 0 from being hashed to 0


def hash_ids(
    values: ArrayLike | Sequence[str] | Sequence[bytes], *, bits: int = V2.signature_bits
) -> NDArray[np.int64]:
    """Ids of 0 .. 2^bits - 1 from integers of up to 64 bits, or from strings.

    Different values may get the same id, and then share a row. Of n different values n^2 / 2^(bits
    + 1) pairs are expected to: with 48 bits 0.002 pairs of a million values, 18 of 100 million,
    1,776 of a billion.

    A value has the same id in every process, machine and version. The hash is public and keeps no
    secrets: somebody who chooses the values can make them collide. The number 5 and the text "5"
    are different values; text and its UTF-8 bytes are the same.
    """
    if not 1 <= bits <= 63:
        raise InvalidRequest(f"hash_ids: bits={bits} is outside 1..63")

    if isinstance(values, list | tuple) and values and isinstance(values[0], str | bytes):
        codes = _codes_of_strings(
            list(values)
        )  # NumPy would make an array as wide as the longest of them
    else:
        array = as_array(values, "hash_ids")
        if array.size == 0:
            return np.empty(array.shape, np.int64)

        codes = _codes(array)

    mixed = mix64((codes + _INCREMENT).view(np.int64))
    return (mixed >> np.uint64(64 - bits)).astype(np.int64)


def _codes(array: NDArray[np.generic]) -> NDArray[np.uint64]:
    if array.dtype.kind == "i":
        return array.astype(np.int64).view(np.uint64)

    if array.dtype.kind == "u":
        return array.astype(np.uint64)

    if array.dtype.kind in "USO":
        return _codes_of_strings(array.reshape(-1).tolist()).reshape(array.shape)

    raise InvalidRequest(
        f"hash_ids: values are {array.dtype}, expected integers of up to 64 bits, text or bytes"
    )


def _as_bytes(value: Any) -> bytes:
    encoded: bytes = value if isinstance(value, bytes) else value.encode()
    return encoded


def _codes_of_strings(values: list[object]) -> NDArray[np.uint64]:
    from megalith.client._kernels import hashing

    try:
        encoded = [_as_bytes(value) for value in values]
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            "hash_ids: values are of several kinds, or text that is no Unicode; "
            f"expected integers of up to 64 bits, text or bytes: {error}"
        ) from error

    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    codes = np.empty(len(encoded), np.uint64)
    hashing.fnv1a(np.frombuffer(b"".join(encoded), np.uint8), ends, codes)
    return codes
