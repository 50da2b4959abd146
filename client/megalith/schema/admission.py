"""Which ids may have a row: thresholds by slot, and how sightings are counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidSetting
from megalith.schema.fids import V2

NUM_SLOTS = V2.num_slots  # feature slots that an id can name in its bits 48..62
MAX_THRESHOLD = 2**31 - 1


class FilterKind(StrEnum):
    """How occurrences are turned into a decision."""

    NO_FILTER = "no_filter"  # every id is admitted
    PLAIN = "hash_filter"  # counts that are never forgotten
    SLIDING = "sliding_hash_filter"  # counts that age out
    PROBABILISTIC = "probabilistic_filter"  # a draw for each sighting, nothing remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """The admission filter of a table on each ps.

    A table whose thresholds are all 0 has no filter, whatever `kind` says.
    """

    kind: FilterKind = FilterKind.SLIDING
    default_threshold: int = 0  # for slots that `threshold_by_slot` does not name
    threshold_by_slot: Mapping[int, int] = field(default_factory=dict)
    # Ids remembered; 2.8 bytes each when full, 5.6 with thresholds above 15
    capacity: int = 10_000_000
    split_num: int = 7  # blocks of the sliding ring: more forget in smaller portions
    # The same chance at every sighting of an id, 95 % in all after T of them
    equal_probability: bool = False
    seed: int = 0  # of the probabilistic draws

    def thresholds(self) -> NDArray[np.int32]:
        """The threshold of each slot."""
        default = _checked(self.default_threshold, "default_threshold")
        values = np.full(NUM_SLOTS, default, np.int32)

        for slot, threshold in self.threshold_by_slot.items():
            if not 0 <= slot < NUM_SLOTS:
                raise InvalidSetting(f"admission: slot {slot} is outside 0..{NUM_SLOTS - 1}")

            values[slot] = _checked(threshold, f"the threshold of slot {slot}")

        return values


def _checked(threshold: int, name: str) -> int:
    if not 0 <= threshold <= MAX_THRESHOLD:
        raise InvalidSetting(f"admission: {name} is {threshold}, outside 0..{MAX_THRESHOLD}")

    return threshold
