"""Rows written by their values rather than by gradients: assigned, added to, made as new."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments
from megalith.client._ids import Partition, check_width, checked_ids, checked_rows
from megalith.client._transport.servers import Servers
from megalith.errors import InvalidRequest, MalformedArray
from megalith.protos import parameter_server_pb2 as pb
from megalith.schema import TableConfig
from megalith.wire import arrays

ValuesByTable = Mapping[str, tuple[ArrayLike, ArrayLike]]  # (ids, values [ids, dim])


class RowWrites:
    """Unary calls, one to each server concerned, each applied once.

    Repeated ids are sent as they are, in order.
    """

    def __init__(
        self, servers: Servers, timeout_s: float, config_of: Callable[[str], TableConfig]
    ) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._config_of = config_of

    def assign(self, values: ValuesByTable, req_time_s: int, *, is_added: bool) -> None:
        if values is None:
            raise InvalidRequest("values are None, expected a dict of (ids, values) by table")

        by_table = _arguments.by_name(values, "values", "(ids, values)")
        req_time_s = _arguments.integer(req_time_s, "req_time_s")
        routing = self._servers.routing()
        requests: dict[int, pb.AssignRowsRequest] = {}

        for table, given in by_table.items():
            where = f"table {table}: values are"
            ids, rows = _arguments.pair(given, where, "(ids, values [ids, dim])")
            checked = checked_ids(table, ids)
            matrix = checked_rows(table, "values", rows, checked.size)
            dim = self._config_of(table).dim
            check_width(table, "values", matrix, (dim,))

            partition = Partition.of(checked, routing, is_distinct=True)
            ordered = partition.summed(matrix)

            for index, part in partition.parts():
                if index not in requests:
                    requests[index] = pb.AssignRowsRequest(is_added=is_added, req_time_s=req_time_s)

                requests[index].tables.add(
                    table=table,
                    ids=arrays.encode(partition.ids[part]),
                    values=arrays.encode(ordered[part]),
                )

        self._servers.write_unary(lambda stub: stub.AssignRows, requests, self._timeout_s)

    def reinitialize(self, table: str, ids: ArrayLike) -> NDArray[np.int8]:
        if not isinstance(table, str):
            raise InvalidRequest(f"table={table!r} is not the name of a table")

        routing = self._servers.routing()
        partition = Partition.of(checked_ids(table, ids), routing, is_distinct=True)
        parts = dict(partition.parts())
        requests = {}
        for index, part in parts.items():
            encoded = arrays.encode(partition.ids[part])
            requests[index] = pb.ReinitializeRowsRequest(table=table, ids=encoded)

        replies = self._servers.write_unary(
            lambda stub: stub.ReinitializeRows, requests, self._timeout_s
        )

        status = np.empty(partition.ids.size, arrays.STATUS)

        for index, part in parts.items():
            data = replies[index].status
            if len(data) != part.stop - part.start:
                raise MalformedArray(
                    f"table {table}: ps-{index} sent {len(data)} statuses, which are not one per id"
                )

            status[part] = np.frombuffer(data, arrays.STATUS)

        return status[partition.slots]
