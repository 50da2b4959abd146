"""Rows written by their values rather than by gradients: assigned, added to, made as new."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client._identity import Identity
from megalith.client._partition import Partition, checked_ids, checked_rows
from megalith.client._servers import Servers
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import arrays
from megalith.wire.errors import MalformedArray

TableValues = Mapping[str, tuple[ArrayLike, ArrayLike]]


class RowWrites:
    """Unary calls, one to each server concerned, each applied once. Repeated ids are sent as they are, in order."""

    def __init__(self, servers: Servers, identity: Identity, timeout_s: float) -> None:
        self._servers, self._identity, self._timeout_s = servers, identity, timeout_s

    def assign(self, values: TableValues, req_time_s: int, *, is_added: bool) -> None:
        routing = self._servers.routing()
        requests: dict[int, pb.AssignRowsRequest] = {}
        for table, (ids, given) in values.items():
            keys = checked_ids(table, ids)
            matrix = checked_rows(table, "values", given, keys.size)
            partition = Partition.of(keys, routing, is_distinct=True)
            ordered = partition.summed(matrix)
            for index, part in partition.parts():
                request = requests.setdefault(index, pb.AssignRowsRequest(is_added=is_added, req_time_s=req_time_s))
                request.tables.add(
                    table=table, keys=arrays.encode(partition.keys[part]), values=arrays.encode(ordered[part])
                )
        with self._identity.stamped(requests):
            self._servers.call(lambda stub: stub.AssignRows, requests, self._timeout_s)

    def reinitialize(self, table: str, ids: ArrayLike) -> NDArray[np.int8]:
        partition = Partition.of(checked_ids(table, ids), self._servers.routing(), is_distinct=True)
        parts = dict(partition.parts())
        requests = {
            index: pb.ReinitializeRowsRequest(table=table, keys=arrays.encode(partition.keys[part]))
            for index, part in parts.items()
        }
        with self._identity.stamped(requests):
            replies = self._servers.call(lambda stub: stub.ReinitializeRows, requests, self._timeout_s)
        status = np.empty(partition.keys.size, arrays.STATUS)
        for index, part in parts.items():
            data = replies[index].status
            if len(data) != part.stop - part.start:
                raise MalformedArray(f"table {table}: ps {index} sent {len(data)} statuses, which are not one per id")
            status[part] = np.frombuffer(data, arrays.STATUS)
        return status[partition.slots]
