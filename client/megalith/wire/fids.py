"""How a feature id names its slot: an int64 whose high bits are the slot and whose low bits are the signature.

    v1   slot 63..54 (10 bits)   signature 53..0 (54 bits)
    v2   bit 63 is 0, slot 62..48 (15 bits)   signature 47..0 (48 bits)

Tables always read the v2 slot (expiry, admission), so v1 ids go through `v1_to_v2` before they reach one. Bits are
those of the unsigned view: a v1 id of slot 512 or more is a negative int64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.wire.arrays import as_array
from megalith.wire.errors import InvalidRequest


def _integers(values: ArrayLike, what: str) -> NDArray[Any]:
    array = as_array(values, what)
    if array.size == 0:  # an empty list has no dtype of its own
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidRequest(f"{what} are {array.dtype}, expected integers of up to 64 bits")
    return array


def _unsigned(values: ArrayLike, what: str) -> NDArray[np.uint64]:
    """Integers of any width as unsigned 64-bit ones with the same low bits."""
    array = _integers(values, what)
    return (
        array.astype(np.int64).view(np.uint64)
        if array.dtype.kind == "i"
        else array.astype(np.uint64)
    )


@dataclass(frozen=True, slots=True)
class FidLayout:
    """One way to divide the bits of an id. All methods take and return whole arrays; a scalar gives a 0-d array."""

    name: str
    slot_bits: int
    signature_bits: int

    @property
    def num_slots(self) -> int:
        return 1 << self.slot_bits

    @property
    def signature_mask(self) -> int:
        return (1 << self.signature_bits) - 1

    def pack(self, slots: ArrayLike, signatures: ArrayLike) -> NDArray[np.int64]:
        """Ids of those slots and signatures, broadcast against each other.

        Signature bits that do not fit are cut off, as a hash's may be; a slot that does not fit is refused.
        """
        return self._join(self._checked_slots(slots), _unsigned(signatures, "signatures"))

    def slots(self, fids: ArrayLike) -> NDArray[np.int64]:
        """The slot of each id, whatever bit 63 of a v2 id says."""
        shifted = _unsigned(fids, "fids") >> np.uint64(self.signature_bits)
        return (shifted & np.uint64(self.num_slots - 1)).astype(np.int64)

    def signatures(self, fids: ArrayLike) -> NDArray[np.int64]:
        return (_unsigned(fids, "fids") & np.uint64(self.signature_mask)).astype(np.int64)

    def with_slots(self, fids: ArrayLike, slots: ArrayLike) -> NDArray[np.int64]:
        """The same signatures under other slots."""
        return self._join(self._checked_slots(slots), _unsigned(fids, "fids"))

    def checked(self, fids: ArrayLike) -> NDArray[np.int64]:
        """`fids` as int64; InvalidRequest if one sets a bit that the layout keeps free (bit 63 in v2)."""
        unsigned = _unsigned(fids, "fids")
        bad = (unsigned >> np.uint64(self.signature_bits)) >= np.uint64(self.num_slots)
        if bad.any():
            raise InvalidRequest(
                f"{np.count_nonzero(bad)} fids are not of layout {self.name}, e.g. {unsigned[bad].flat[0]:#x}"
            )
        return unsigned.view(np.int64)

    def _checked_slots(self, slots: ArrayLike) -> NDArray[np.uint64]:
        array = _integers(slots, "slots")
        bad = (array < 0) | (array >= self.num_slots)
        if bad.any():
            raise InvalidRequest(
                f"slot {array[bad].flat[0]} is outside 0..{self.num_slots - 1} of layout {self.name}"
            )
        return array.astype(np.uint64)

    def _join(self, slots: NDArray[np.uint64], signatures: NDArray[np.uint64]) -> NDArray[np.int64]:
        low = signatures & np.uint64(self.signature_mask)
        return np.asarray((slots << np.uint64(self.signature_bits)) | low).view(np.int64)


V1 = FidLayout("v1", slot_bits=10, signature_bits=54)
V2 = FidLayout("v2", slot_bits=15, signature_bits=48)


def v1_to_v2(fids: ArrayLike) -> NDArray[np.int64]:
    """The v2 ids of the same slots; the top 6 bits of the v1 signature are dropped."""
    return V2.pack(V1.slots(fids), V1.signatures(fids))
