"""Rows written by their values rather than by gradients: assigned, added to, made as new."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments
from megalith.client._identity import Identity
from megalith.client._partition import Partition, check_width, checked_ids, checked_rows
from megalith.client._servers import Servers
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import arrays
from megalith.wire.errors import InvalidRequest, MalformedArray
from megalith.wire.schema import TableConfig

TableValues = Mapping[str, tuple[ArrayLike, ArrayLike]]


class RowWrites:
    """Unary calls, one to each server concerned, each applied once. Repeated ids are sent as they are, in order."""

    def __init__(
        self,
        servers: Servers,
        identity: Identity,
        timeout_s: float,
        config_of: Callable[[str], TableConfig],
    ) -> None:
        self._servers, self._identity, self._timeout_s = servers, identity, timeout_s
        self._config_of = config_of

    def assign(self, values: TableValues, req_time_s: int, *, is_added: bool) -> None:
        if values is None:
            raise InvalidRequest("values are None, expected a dict of (ids, values) by table")
        by_table = _arguments.by_name(values, "values", "(ids, values)")
        req_time_s = _arguments.integer(req_time_s, "req_time_s")
        routing = self._servers.routing()
        requests: dict[int, pb.AssignRowsRequest] = {}
        for table, given in by_table.items():
            ids, rows = _arguments.pair(
                given, f"table {table}: values are", "(ids, values [ids, dim])"
            )
            keys = checked_ids(table, ids)
            matrix = checked_rows(table, "values", rows, keys.size)
            check_width(table, "values", matrix, (self._config_of(table).dim,))
            partition = Partition.of(keys, routing, is_distinct=True)
            ordered = partition.summed(matrix)
            for index, part in partition.parts():
                request = requests.setdefault(
                    index, pb.AssignRowsRequest(is_added=is_added, req_time_s=req_time_s)
                )
                request.tables.add(
                    table=table,
                    keys=arrays.encode(partition.keys[part]),
                    values=arrays.encode(ordered[part]),
                )
        self._identity.write(
            requests,
            lambda: self._servers.write(lambda stub: stub.AssignRows, requests, self._timeout_s),
        ).result()

    def reinitialize(self, table: str, ids: ArrayLike) -> NDArray[np.int8]:
        if not isinstance(table, str):
            raise InvalidRequest(f"table={table!r} is not the name of a table")
        partition = Partition.of(checked_ids(table, ids), self._servers.routing(), is_distinct=True)
        parts = dict(partition.parts())
        requests = {
            index: pb.ReinitializeRowsRequest(table=table, keys=arrays.encode(partition.keys[part]))
            for index, part in parts.items()
        }
        replies = self._identity.write(
            requests,
            lambda: self._servers.write(
                lambda stub: stub.ReinitializeRows, requests, self._timeout_s
            ),
        ).result()
        status = np.empty(partition.keys.size, arrays.STATUS)
        for index, part in parts.items():
            data = replies[index].status
            if len(data) != part.stop - part.start:
                raise MalformedArray(
                    f"table {table}: ps {index} sent {len(data)} statuses, which are not one per id"
                )
            status[part] = np.frombuffer(data, arrays.STATUS)
        return status[partition.slots]
