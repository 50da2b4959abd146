"""Lookups of a replica, whichever way their ids have come."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from megalith.protos import replica_pb2 as pb
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.copies.exported_copy import ExportedCopy
from megalith.replica.copies.view import CopyFreshness
from megalith.wire import arrays, codec

# Told the bytes of a reply before memory is taken for them; may refuse them.
Reserve = Callable[[int], None]


class Lookups:
    """Rows by id, as a request wants them. Any thread may call."""

    def __init__(self, copy: ClusterCopy | ExportedCopy) -> None:
        self._copy = copy

    def look_up(
        self, request: pb.LookupRequest, ids: Sequence[bytes | memoryview], reserve: Reserve
    ) -> tuple[list[NDArray[Any]], CopyFreshness]:
        """The rows of each table of the request; `ids` are those of each table."""
        view = self._copy.view(request.max_staleness_us / 1e6)
        dtype = codec.row_dtype(request.row_dtype, "row_dtype")
        rows: list[NDArray[Any]] = []

        for part, data in zip(request.tables, ids, strict=True):
            name = part.table
            wanted = arrays.decode_ids(data, f"ids of table {name}")
            row_bytes = view.width(name) * dtype.itemsize
            reserve(wanted.size * row_bytes)

            found = view.lookup(name, wanted)
            if dtype == arrays.HALF:
                rows.append(arrays.to_half(found))
            else:
                rows.append(found)

        return rows, view.freshness
