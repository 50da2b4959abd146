"""What a replica is told of a ps, as values: `servicer.py` makes messages of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.dtypes import I64, U8
from megalith.schema import TableConfig

Sets = Mapping[str, int]  # by table, the newest set of its delta log that a replica has


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a replica has of one ps. `log_id` names the process whose delta logs are meant."""

    log_id: str = ""
    sets: Sets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableBegins:
    config: TableConfig
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """`rows` are compressed: one row of bytes for each id."""

    table: str
    ids: I64
    rows: U8
    times: I64


@dataclass(frozen=True, slots=True)
class Dropped:
    table: str
    ids: I64


@dataclass(frozen=True, slots=True)
class SnapshotEnds:
    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class VariablesChanged:
    """Values by name of the variable, or of a part of it."""

    values: Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class VersionEnds:
    """All changes before `sealed_s` are in the version; both times are of the monotonic clock.

    `oldest_s` has, by table that changed, when the oldest change in the version was made;
    `oldest_events_s` the oldest time of the data of these changes, where it has one, Unix seconds.
    `num_sent` counts rows, dropped ids and values of variables of the version.
    """

    number: int
    sets: Sets
    sealed_s: float
    oldest_s: Mapping[str, float]
    oldest_events_s: Mapping[str, int]
    newest_data_s: int
    variables: tuple[str, ...]
    num_sent: int


def num_in(event: "Event") -> int:
    """Rows, dropped ids or values of variables."""
    match event:
        case RowsChanged(_, ids) | Dropped(_, ids):
            return ids.size
        case VariablesChanged(values):
            return len(values)
        case _:
            return 0


Event = TableBegins | RowsChanged | Dropped | SnapshotEnds | VariablesChanged | VersionEnds
