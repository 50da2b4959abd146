"""The ids of a batch, searched and routed once for all calls that use them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client._partition import Partition, checked_ids
from megalith.wire.routing import Routing


class Ids:
    """Ids of one table, for a pull and the push after it: the search for distinct ones is done once.

    Parameters
    ----------
    values
        A vector of int64. It must not be changed afterwards.
    distinct
        A promise that no id occurs twice, which saves the search. A broken one is refused by the servers, as
        DuplicateKeys at the push.
    """

    def __init__(self, values: ArrayLike, *, distinct: bool = False) -> None:
        self._values = checked_ids("", values)
        self._is_distinct = distinct
        self._routed: tuple[Routing, Partition] | None = None

    def __len__(self) -> int:
        return self._values.size

    @property
    def values(self) -> NDArray[np.int64]:
        """As given."""
        return self._values

    def partition(self, routing: Routing) -> Partition:
        """Split by the servers of a map; kept for the next call with the same owners."""
        routed = self._routed  # one read: another thread may replace it
        if routed is None or not np.array_equal(routed[0].owners, routing.owners):
            routed = routing, Partition.of(self._values, routing, is_distinct=self._is_distinct)
            self._routed = routed
        return routed[1]


def partition_of(table: str, ids: "ArrayLike | Ids", routing: Routing) -> Partition:
    """The partition of ids given in either form."""
    return ids.partition(routing) if isinstance(ids, Ids) else Partition.of(checked_ids(table, ids), routing)
