"""Which ids may have a row: per-slot thresholds, and the filters that apply them.

One filter serves all tables of a ps and knows ids only. A table asks it about ids that it does not hold, before it
creates them; ids that have a row are never asked about. An id evicted and seen again may be admitted at once.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.ps.counting_filter import CountingFilter
from megalith.ps.kernels import admission as kernels
from megalith.ps.kernels.admission import NUM_SLOTS
from megalith.ps.kernels.dtypes import I32, I64, Bools
from megalith.ps.sightings import check_sightings
from megalith.wire.errors import InvalidSetting

MAX_THRESHOLD = 2**31 - 1


class FilterKind(StrEnum):
    """How occurrences are turned into a decision."""

    NO_FILTER = "no_filter"  # every id is admitted
    PLAIN = "hash_filter"  # counts that are never forgotten
    SLIDING = "sliding_hash_filter"  # counts that age out
    PROBABILISTIC = "probabilistic_filter"  # a draw for each sighting, nothing remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """The filter of a ps. Without any threshold above 0 there is none, whatever the kind says."""

    kind: FilterKind = FilterKind.SLIDING
    default_threshold: int = 0  # for slots that `threshold_by_slot` does not name
    threshold_by_slot: Mapping[int, int] = field(default_factory=dict)
    capacity: int = 300_000_000  # ids remembered; 2.8 bytes each when full, 5.6 with thresholds above 15
    split_num: int = 7  # blocks of the sliding ring: more forget in smaller portions
    equal_probability: bool = False  # the same chance at every sighting of an id, 95 % in all after T of them
    seed: int = 0  # of the probabilistic draws

    def thresholds(self) -> I32:
        """The threshold of each slot."""
        values = np.full(NUM_SLOTS, _checked(self.default_threshold, "default_threshold"), np.int32)
        for slot, threshold in self.threshold_by_slot.items():
            if not 0 <= slot < NUM_SLOTS:
                raise InvalidSetting(f"admission: slot {slot} is outside 0..{NUM_SLOTS - 1}")
            values[slot] = _checked(threshold, f"the threshold of slot {slot}")
        return values


class AdmissionFilter(Protocol):
    """Any thread may call any method."""

    def admit(self, keys: I64, counts: I64) -> Bools:
        """Whether each absent id, seen counts[i] more times, may have a row; repeated ids count one after the other."""

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps of the filter; nothing for one that remembers nothing."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state; one that does not fit is refused and changes nothing."""


class NoFilter:
    """Admits every id."""

    def admit(self, keys: I64, counts: I64) -> Bools:
        check_sightings(keys, counts)
        return np.ones(keys.size, np.bool_)

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """A state left by another kind of filter is of no use here."""


class ProbabilisticFilter:
    """Admits an id of threshold T with probability min(1, count/T), or, with `is_equal`, 1 - 0.05^(count/T).

    Nothing is remembered about ids. The lock guards the number of draws made so far: threads never share a draw.
    """

    def __init__(self, thresholds: I32, is_equal: bool = False, seed: int = 0) -> None:
        if not 0 <= seed < 2**63:
            raise InvalidSetting(f"admission: seed {seed} does not fit 63 bits")
        self._thresholds, self._is_equal, self._seed = thresholds, is_equal, seed
        self._lock = threading.Lock()
        self._draws = 0

    def admit(self, keys: I64, counts: I64) -> Bools:
        check_sightings(keys, counts)
        with self._lock:
            first = self._draws
            self._draws += keys.size
        out = np.empty(keys.size, np.bool_)
        kernels.admit_by_chance(keys, counts, self._thresholds, self._is_equal, self._seed, first, out)
        return out

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """A state left by another kind of filter is of no use here."""


def admission_filter(config: AdmissionConfig) -> AdmissionFilter:
    """The filter that the settings ask for."""
    thresholds = config.thresholds()
    if not thresholds.any():
        return NoFilter()
    match config.kind:
        case FilterKind.NO_FILTER:
            return NoFilter()
        case FilterKind.PLAIN:
            return CountingFilter.plain(thresholds, config.capacity)
        case FilterKind.SLIDING:
            return CountingFilter.sliding(thresholds, config.capacity, config.split_num)
        case FilterKind.PROBABILISTIC:
            return ProbabilisticFilter(thresholds, config.equal_probability, config.seed)
        case _:
            raise InvalidSetting(f"admission: unknown kind {config.kind!r}; known are {', '.join(FilterKind)}")


def _checked(threshold: int, name: str) -> int:
    if not 0 <= threshold <= MAX_THRESHOLD:
        raise InvalidSetting(f"admission: {name} is {threshold}, outside 0..{MAX_THRESHOLD}")
    return threshold
