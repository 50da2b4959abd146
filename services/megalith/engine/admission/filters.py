"""Which ids may have a row: per-slot thresholds, and the filters that apply them.

A filter knows ids only. A table asks it about ids that it does not hold, before it creates them;
ids that have a row are never asked about. An id evicted and seen again may be admitted at once.
"""

import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.admission.sightings import check_sightings
from megalith.engine.kernels import admission as kernels
from megalith.errors import InvalidSetting
from megalith.kernels.dtypes import I32, I64, Bools
from megalith.schema.admission import AdmissionConfig, FilterKind


class AdmissionFilter(Protocol):
    """Any thread may call any method."""

    def admit(self, ids: I64, counts: I64) -> Bools:
        """Whether each absent id, seen counts[i] more times, may have a row.

        Repeated ids count one after the other.
        """

    def state(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps of the filter; nothing for one that remembers nothing."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state; one that does not fit is refused and changes nothing."""


class NoFilter:
    """Admits every id."""

    def admit(self, ids: I64, counts: I64) -> Bools:
        check_sightings(ids, counts)
        return np.ones(ids.size, np.bool_)

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """A state left by another kind of filter is of no use here."""


class ProbabilisticFilter:
    """Admits an id of threshold T with probability min(1, count/T).

    With `is_equal` it is 1 - 0.05^(count/T).

    Nothing is remembered about ids. The lock guards the number of draws made so far: threads never
    share a draw.
    """

    def __init__(self, thresholds: I32, is_equal: bool = False, seed: int = 0) -> None:
        if not 0 <= seed < 2**63:
            raise InvalidSetting(f"admission: seed {seed} does not fit 63 bits")

        self._thresholds = thresholds
        self._is_equal = is_equal
        self._seed = seed
        self._lock = threading.Lock()
        self._draws = 0

    def admit(self, ids: I64, counts: I64) -> Bools:
        check_sightings(ids, counts)
        with self._lock:
            first = self._draws
            self._draws += ids.size

        out = np.empty(ids.size, np.bool_)
        kernels.admit_by_chance(
            ids, counts, self._thresholds, self._is_equal, self._seed, first, out
        )
        return out

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """A state left by another kind of filter is of no use here."""


def readjusted(
    held: AdmissionFilter | None, wanted: AdmissionFilter | None
) -> AdmissionFilter | None:
    """The filter for new settings, for which `wanted` was made.

    It is the one at hand if only thresholds changed, so that no sighting is forgotten. That one
    then has the new thresholds.
    """
    if (
        isinstance(held, CountingFilter)
        and isinstance(wanted, CountingFilter)
        and held.layout == wanted.layout
    ):
        held.thresholds = wanted.thresholds
        return held

    return wanted


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
            raise InvalidSetting(
                f"admission: unknown kind {config.kind!r}; known are {', '.join(FilterKind)}"
            )
