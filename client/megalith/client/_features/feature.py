"""A feature: which ids it has, what their rows look like, how an example's rows are combined."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client._features.combiners import Combiner, Sum
from megalith.client._features.hashing import hash_ids
from megalith.client._features.ragged import Ragged
from megalith.errors import DuplicateIds, InvalidRequest, WrongSlot
from megalith.schema import (
    Adagrad,
    Compressor,
    Fp32,
    Initializer,
    Optimizer,
    Schedule,
    Segment,
    Zeros,
)
from megalith.schema.checks import as_array, require
from megalith.schema.fids import V1, V2, FidLayout, v1_to_v2

KEPT_DAYS = 36500  # a hundred years: rows do not expire


@dataclass(frozen=True, slots=True)
class Slice:
    """Named columns of a feature's rows.

    It says how they start, how they move and how fast, and how serving stores them.
    """

    name: str
    dim: int
    initializer: Initializer = field(default_factory=Zeros)
    optimizer: Optimizer = field(default_factory=Adagrad)
    compressor: Compressor = field(default_factory=Fp32)
    schedule: Schedule | None = None  # None: the optimizer's own learning rate, after its warm-up

    def __post_init__(self) -> None:
        require(isinstance(self.name, str), f"slice {self.name!r}: its name is no text")
        require(
            bool(self.name) and "." not in self.name,
            f"slice {self.name!r}: a name is not empty and has no dot",
        )

        self.segment(self.dim)

    def segment(self, dim: int) -> Segment:
        """A segment of that width which behaves like this slice."""
        return Segment(dim, self.initializer, self.optimizer, self.compressor, self.schedule)


@dataclass(frozen=True, slots=True)
class Feature:
    """A named column of a batch whose ids have rows of the same slices.

    With a `slot` every id must have it in its bits, and the feature may live in one table with
    others of equal slices. Without one, ids are any int64 and the feature has a table for itself.
    """

    name: str
    slices: tuple[Slice, ...]
    slot: int | tuple[int, ...] = ()
    combiner: Combiner = field(default_factory=Sum)
    occurrence_threshold: int = 0  # pushes of an id before it gets a row; 0 = the first one does
    expire_days: int = KEPT_DAYS  # of data time without an update
    # Features of one table have the same row for the same id; another feature's name shares that
    # feature's rows.
    table: str | None = None
    # How the bits of incoming ids are divided. Tables know v2 only: v1 ids lose the top 6 bits of
    # their signature.
    fid_layout: FidLayout = V2

    def __post_init__(self) -> None:
        label = f"feature {self.name}"
        require(isinstance(self.name, str), f"{label}: its name is no text")
        require(
            _are_all(self.slices, Slice),
            f"{label}: slices are {self.slices!r}, expected a tuple of Slice",
        )

        require(
            isinstance(self.slot, int) or _are_all(self.slot, int),
            f"{label}: slot {self.slot!r} is neither an integer nor a tuple of integers",
        )

        require(
            bool(self.name) and "," not in self.name,
            f"feature {self.name!r}: a name is not empty, without comma",
        )

        require(bool(self.slices), f"{label}: it has no slices")
        require(self.table != "", f"{label}: the name of its table is empty")
        require(self.fid_layout in (V1, V2), f"{label}: fid_layout is neither V1 nor V2")

        names = [part.name for part in self.slices]
        if len(set(names)) < len(names):
            raise DuplicateIds(f"{label}: slices {names} are not distinct")

        limit = self.fid_layout.num_slots

        for slot in self.slots:
            require(
                0 <= slot < limit,
                f"{label}: slot {slot} is outside 0..{limit - 1} of layout {self.fid_layout.name}",
            )

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.slot,) if isinstance(self.slot, int) else self.slot

    @property
    def dim(self) -> int:
        return sum(part.dim for part in self.slices)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What a table stores.

        Neighbouring slices that differ in nothing but their width are one segment. An optimizer
        that looks at a group of columns (group_adagrad, group_ftrl) sees the whole segment.
        """
        segments: list[Segment] = []
        before: Slice | None = None

        for part in self.slices:
            if before is not None and before.segment(1) == part.segment(1):
                wider = segments.pop().dim + part.dim
                segments.append(part.segment(wider))
            else:
                segments.append(part.segment(part.dim))

            before = part

        return tuple(segments)

    def columns(self, slice_name: str) -> tuple[int, int] | None:
        """[start, end) of a slice in the feature's row; None if it has no such slice."""
        start = 0
        for part in self.slices:
            end = start + part.dim
            if part.name == slice_name:
                return start, end

            start = end

        return None

    def fids(self, signatures: ArrayLike) -> NDArray[np.int64]:
        """Ids of this feature: its slot in the high bits, `signatures` in the low ones.

        A signature is 0 .. 2^48 - 1 (2^54 - 1 in layout V1). Another one is an InvalidRequest:
        `hashed` takes any.
        """
        slot = self._one_slot()
        array = as_array(signatures, f"feature {self.name}: ids")
        largest = self.fid_layout.signature_mask

        # `pack` refuses what is no integer.
        if array.size and array.dtype.kind in "iu":
            # Two numbers tell, without an array of answers, whether any id is outside.
            lowest = array.min()
            highest = array.max()

            if lowest < 0 or highest > largest:
                is_outside = (array < 0) | (array > largest)
                outside = array[is_outside]
                raise InvalidRequest(
                    f"feature {self.name}: {outside.size} of {array.size} ids "
                    f"are outside 0..{largest} "
                    f"(2^{self.fid_layout.signature_bits} - 1), "
                    f"e.g. {outside.flat[0]}; "
                    "hashed() makes ids of any 64-bit values and of strings"
                )

        return self.fid_layout.pack(slot, array)

    def hashed(self, values: ArrayLike | Sequence[str] | Sequence[bytes]) -> NDArray[np.int64]:
        """Ids of this feature for any 64-bit integers, or for strings: `fids` of their `hash_ids`.

        Of n different values n^2 / 2^49 pairs are expected to get the same id, and then share a
        row: 18 pairs of 100 million values. In layout V1 too, because tables keep 48 bits of it.
        """
        slot = self._one_slot()
        signatures = hash_ids(values, bits=self.fid_layout.signature_bits)
        return self.fid_layout.pack(slot, signatures)

    def _one_slot(self) -> int:
        if len(self.slots) != 1:
            raise InvalidRequest(
                f"feature {self.name}: it has {len(self.slots)} slots; ids are made for exactly one"
            )

        return self.slots[0]

    def stored(self, ids: Ragged) -> Ragged:
        """The ids as tables know them. WrongSlot if one is of another slot than the feature's."""
        if not self.slots and self.fid_layout is V2:
            return ids
        if self.slots:
            self._check_slots(ids)
        if self.fid_layout is V2:
            return ids

        return Ragged(v1_to_v2(ids.values), ids.row_splits, is_shared=ids.is_shared)

    def _check_slots(self, ids: Ragged) -> None:
        shift = np.uint64(self.fid_layout.signature_bits)
        slots = ids.values.view(np.uint64) >> shift  # v2's free bit 63 included
        known = np.array(self.slots, np.uint64)

        # One slot, as nearly every feature has, needs no search.
        is_wrong = slots != known[0] if known.size == 1 else ~np.isin(slots, known)

        if is_wrong.any():
            wrong = np.flatnonzero(is_wrong)
            first = int(wrong[0])
            expected = list(self.slots)

            raise WrongSlot(
                f"feature {self.name}: {wrong.size} ids are not of slot {expected}; "
                f"the first, {ids.values[first]} at value {first}, "
                f"is of slot {slots[first]}"
            )


def _are_all(values: object, kind: type) -> bool:
    """Whether it is a tuple or list of that kind alone."""
    if not isinstance(values, tuple | list):
        return False

    return all(isinstance(value, kind) for value in values)
