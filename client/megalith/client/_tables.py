"""Tables as a whole: made, looked at and dropped on every server."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from megalith.client._transport.servers import Servers
from megalith.errors import UnknownTable
from megalith.protos import parameter_server_pb2 as pb
from megalith.schema import TableConfig
from megalith.wire import codec

logger = logging.getLogger(__name__)


class Tables:
    """The tables of a cluster. Their configurations are remembered, so that a push asks for none.

    Thread-safe: what several threads learn of a table is the same.
    """

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._configs: dict[str, TableConfig] = {}

    def create(self, configs: Sequence[TableConfig], *, allow_new_layout: bool) -> None:
        """See `Cluster.create_tables`."""
        request = pb.CreateTablesRequest(
            tables=[codec.table_to_proto(config) for config in configs],
            allow_new_layout=allow_new_layout,
        )

        requests = {}
        for index in self._ps_indices():
            requests[index] = pb.CreateTablesRequest()
            requests[index].CopyFrom(request)

        replies = self._servers.call(lambda stub: stub.CreateTables, requests, self._timeout_s)
        for config in configs:
            self._configs[config.name] = config
            _say_new_layout(config.name, replies.values())

    def config_of(self, table: str) -> TableConfig:
        """A table's settings, when its rows do not tell what is needed.

        Those made elsewhere are asked for once.
        """
        if table not in self._configs:
            reply = self._servers.status_of(0, self._timeout_s)
            for status in reply.tables:
                config = codec.table_from_proto(status.config)
                self._configs[config.name] = config

        if table not in self._configs:
            known = sorted(self._configs)
            raise UnknownTable(f"the cluster has no table {table!r}; it has {known}")

        return self._configs[table]

    def status_of_all(self) -> Iterator[pb.GetPsStatusResponse]:
        """What each server says of its tables and variables."""
        for index in self._ps_indices():
            yield self._servers.status_of(index, self._timeout_s)

    def expire(self) -> dict[str, int]:
        """See `Cluster.expire`."""
        dropped: Counter[str] = Counter()
        for index in self._ps_indices():
            request = pb.ExpireRequest()
            reply = self._servers.ask(index, lambda stub: stub.Expire, request, self._timeout_s)
            dropped.update(reply.dropped)

        return dict(sorted(dropped.items()))

    def drop(self, name: str) -> int:
        """See `Cluster.drop_table`."""
        rows = 0
        was_there = False
        for index in self._ps_indices():
            request = pb.DropTableRequest(table=name)
            reply = self._servers.ask(index, lambda stub: stub.DropTable, request, self._timeout_s)
            rows += reply.rows
            was_there = was_there or reply.was_here

        if not was_there:
            raise UnknownTable(f"no server has a table {name!r}; `megalith ctl tables` lists them")

        return rows

    def _ps_indices(self) -> range:
        routing = self._servers.routing()
        return range(len(routing.addresses))


def _say_new_layout(table: str, replies: Iterable[pb.CreateTablesResponse]) -> None:
    """Say what became of the rows of a table that servers gave a new layout."""
    changed = [reply for reply in replies if table in reply.kept]
    if changed:
        logger.warning(
            "table %s has a new layout: the weights of %d rows stay and their optimizers begin "
            "anew, %d rows are gone",
            table,
            sum(reply.kept[table] for reply in changed),
            sum(reply.dropped[table] for reply in changed),
        )
