"""How a feature id names its slot: an int64 of a slot in the high bits and a signature in the low.

    v1   slot 63..54 (10 bits)   signature 53..0 (54 bits)
    v2   bit 63 is 0, slot 62..48 (15 bits)   signature 47..0 (48 bits)

Tables always read the v2 slot (expiry, admission), so v1 ids go through `v1_to_v2` before they
reach one. Bits are those of the unsigned view: a v1 id of slot 512 or more is a negative int64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import InvalidRequest
from megalith.schema.checks import as_array


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
    if array.dtype.kind == "u":
        return array.astype(np.uint64)

    signed = array.astype(np.int64)
    return signed.view(np.uint64)


@dataclass(frozen=True, slots=True)
class FidLayout:
    """One way to divide the bits of an id. All methods take and return whole arrays.

    A scalar gives a 0-d array.
    """

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

        Signature bits that do not fit are cut off, as a hash's may be; a slot that does not fit is
        refused.
        """
        checked = self._checked_slots(slots)
        return self._join(checked, _unsigned(signatures, "signatures"))

    def slots(self, fids: ArrayLike) -> NDArray[np.int64]:
        """The slot of each id, whatever bit 63 of a v2 id says."""
        unsigned = _unsigned(fids, "fids")
        shift = np.uint64(self.signature_bits)
        mask = np.uint64(self.num_slots - 1)

        slots = (unsigned >> shift) & mask
        return slots.astype(np.int64)

    def signatures(self, fids: ArrayLike) -> NDArray[np.int64]:
        mask = np.uint64(self.signature_mask)
        low = _unsigned(fids, "fids") & mask
        return low.astype(np.int64)

    def _checked_slots(self, slots: ArrayLike) -> NDArray[np.uint64]:
        array = _integers(slots, "slots")
        is_negative = array < 0
        is_beyond = array >= self.num_slots
        is_wrong = is_negative | is_beyond

        if is_wrong.any():
            example = array[is_wrong].flat[0]
            last = self.num_slots - 1
            raise InvalidRequest(f"slot {example} is outside 0..{last} of layout {self.name}")

        return array.astype(np.uint64)

    def _join(self, slots: NDArray[np.uint64], signatures: NDArray[np.uint64]) -> NDArray[np.int64]:
        high = slots << np.uint64(self.signature_bits)
        low = signatures & np.uint64(self.signature_mask)
        fids = np.asarray(high | low)

        return fids.view(np.int64)


V1 = FidLayout("v1", slot_bits=10, signature_bits=54)
V2 = FidLayout("v2", slot_bits=15, signature_bits=48)


def v1_to_v2(fids: ArrayLike) -> NDArray[np.int64]:
    """The v2 ids of the same slots; the top 6 bits of the v1 signature are dropped."""
    return V2.pack(V1.slots(fids), V1.signatures(fids))
