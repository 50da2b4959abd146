"""A running cluster as a training program sees it."""

import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client._controller import Controller
from megalith.client._feature import Feature
from megalith.client._feature_set import FeatureSet
from megalith.client._layout import Layout
from megalith.client._partition import Partition, checked_gradients, checked_ids
from megalith.client._servers import Servers
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import arrays, channel, codec
from megalith.wire.errors import UnknownTable
from megalith.wire.routing import Routing
from megalith.wire.schema import AdmissionConfig, TableConfig, VariableConfig

Update = tuple["pb.VariableUpdate.Kind.ValueType", Mapping[str, ArrayLike]]


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull: a matrix per table, in the order of the ids asked for, and the variables asked for."""

    rows: dict[str, NDArray[np.float32]]
    variables: dict[str, NDArray[Any]]


def connect(
    address: str | None = None,
    *,
    model_dir: str | None = None,
    timeout_s: float = 60.0,
    max_message_bytes: int = channel.DEFAULT_MAX_MESSAGE_BYTES,
) -> "Cluster":
    """Connect to a cluster by its controller's host:port or its model directory.

    Parameters
    ----------
    address, model_dir
        Exactly one of them.
    timeout_s
        How long a call may wait for servers that start, move or come back, in all.
    max_message_bytes
        Largest request or reply; not above the servers' --max-message-bytes.
    """
    return Cluster(Controller(address, model_dir, timeout_s), timeout_s, max_message_bytes)


class Cluster:
    """Tables and variables on all parameter servers, and the controller. Thread-safe.

    Pulls may run at the same time. Pushes of one Cluster are sent one after the other: `_push_lock` guards the
    sequence numbers, by which a server tells a repeated push from a new one.
    """

    def __init__(self, controller: Controller, timeout_s: float, max_message_bytes: int) -> None:
        self.controller = controller
        self._timeout_s = timeout_s
        self._servers = Servers(controller, max_message_bytes)
        self._client_id = secrets.token_hex(8)
        self._push_lock = threading.Lock()
        self._sequences: dict[int, int] = {}
        self._tables: dict[str, TableConfig] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._servers.close()
        self.controller.close()

    def create_tables(self, *configs: TableConfig) -> None:
        """Create tables on every server; those that exist with the same row layout keep their rows."""
        requests = {
            index: pb.CreateTablesRequest(tables=[codec.table_to_proto(config) for config in configs])
            for index in range(len(self._servers.routing().addresses))
        }
        self._servers.call(lambda stub: stub.CreateTables, requests, self._timeout_s)
        self._tables |= {config.name: config for config in configs}

    def features(
        self,
        *features: Feature,
        layouts: Mapping[str, Layout] | None = None,
        merge: bool = True,
        admission: AdmissionConfig | None = None,
        memory_budget_bytes: int = 0,
    ) -> FeatureSet:
        """The features of a model; their tables are created, or kept if they exist with the same row layout.

        Parameters
        ----------
        layouts
            What the model sees, by name; None: an array per feature, under its name.
        merge
            Features with slots and equal slices live in one table, which costs less than one each. It is named after
            all of them: a feature added later starts another table. False, or a feature's own `table`, avoids that.
        admission
            The filter of features with an occurrence threshold; thresholds in it are replaced by theirs.
        memory_budget_bytes
            Of each table on each server; 0 is no limit.
        """
        return FeatureSet(
            self, features, layouts, merge=merge, admission=admission, memory_budget_bytes=memory_budget_bytes
        )

    def create_variables(self, *configs: VariableConfig) -> None:
        """Create variables, each on its server; those that exist keep their values."""
        routing = self._servers.routing()
        requests: dict[int, pb.CreateVariablesRequest] = {}
        for config in configs:
            request = requests.setdefault(routing.owner_of_name(config.name), pb.CreateVariablesRequest())
            request.variables.append(codec.variable_to_proto(config))
        self._servers.call(lambda stub: stub.CreateVariables, requests, self._timeout_s)

    def pull(self, tables: Mapping[str, ArrayLike] | None = None, variables: Iterable[str] = ()) -> Pulled:
        """Rows of ids by table, and variables by name: one call to each server concerned.

        An id that no push has touched reads zeros. Duplicate ids give equal rows.
        """
        routing = self._servers.routing()
        requests: dict[int, pb.PullRequest] = {}
        split: dict[str, Partition] = {}
        for table, ids in (tables or {}).items():
            split[table] = Partition.of(checked_ids(table, ids), routing)
            for index, part in split[table].parts():
                keys = arrays.encode(split[table].keys[part])
                request = requests.setdefault(index, pb.PullRequest())
                request.tables.append(pb.TableKeys(table=table, keys=keys))
        for name in variables:
            requests.setdefault(routing.owner_of_name(name), pb.PullRequest()).variables.append(name)
        replies = self._servers.call(lambda stub: stub.Pull, requests, self._timeout_s)
        rows = {table: self._gathered(table, split[table], requests, replies) for table in split}
        values = {
            name: codec.array_from_proto(value, f"variable {name}")
            for index, reply in replies.items()
            for name, value in zip(requests[index].variables, reply.variables, strict=True)
        }
        return Pulled(rows, values)

    def push(
        self,
        gradients: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
        *,
        variables: Mapping[str, ArrayLike] | None = None,
        add: Mapping[str, ArrayLike] | None = None,
        assign: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, tuple[float, ...]] | None = None,
        req_time_s: int = 0,
        step: int = 0,
    ) -> dict[str, NDArray[Any]]:
        """Apply gradients to rows and variables, one call to each server concerned; gradients of equal ids are summed.

        Each server applies its part once, whole, however often the call had to be repeated. Returns the new values of
        the variables in `add`.

        Parameters
        ----------
        gradients
            (ids, gradients [ids, dim]) by table.
        variables, add, assign
            Gradients, summands and new values of variables, by name.
        learning_rates
            One rate per segment by table, in place of the table's own.
        req_time_s
            Unix time of the data, which becomes the rows' update time.
        step
            Global step, for learning-rate schedules and optimizers that count steps.
        """
        routing = self._servers.routing()
        requests: dict[int, pb.PushRequest] = {}
        for table, (ids, values) in (gradients or {}).items():
            rates = (learning_rates or {}).get(table, ())
            self._add_gradients(requests, routing, table, ids, values, rates)
        kinds: tuple[Update, ...] = (
            (pb.VariableUpdate.KIND_GRADIENT, variables or {}),
            (pb.VariableUpdate.KIND_ADD, add or {}),
            (pb.VariableUpdate.KIND_ASSIGN, assign or {}),
        )
        for kind, updates in kinds:
            for name, value in updates.items():
                update = pb.VariableUpdate(name=name, kind=kind, value=codec.array_to_proto(np.asarray(value)))
                requests.setdefault(routing.owner_of_name(name), pb.PushRequest()).variables.append(update)
        with self._push_lock:
            for index, request in requests.items():
                self._sequences[index] = self._sequences.get(index, 0) + 1
                request.client_id, request.sequence = self._client_id, self._sequences[index]
                request.req_time_s, request.step = req_time_s, step
            replies = self._servers.call(lambda stub: stub.Push, requests, self._timeout_s)
        return {
            name: codec.array_from_proto(value, f"variable {name}")
            for index, reply in replies.items()
            for name, value in zip(_added_names(requests[index]), reply.added, strict=True)
        }

    def _add_gradients(
        self,
        requests: dict[int, pb.PushRequest],
        routing: Routing,
        table: str,
        ids: ArrayLike,
        values: ArrayLike,
        rates: tuple[float, ...],
    ) -> None:
        keys = checked_ids(table, ids)
        partition = Partition.of(keys, routing)
        checked = checked_gradients(table, values, keys.size, lambda table: self._table(table).skip_nonfinite)
        summed = partition.summed(checked, self._table(table).dim if partition.has_repeated else None)
        for index, part in partition.parts():
            message = pb.TableGradients(
                table=table,
                keys=arrays.encode(partition.keys[part]),
                gradients=arrays.encode(summed[part]),
                learning_rates=rates,
            )
            requests.setdefault(index, pb.PushRequest()).tables.append(message)

    def _gathered(
        self,
        table: str,
        partition: Partition,
        requests: dict[int, pb.PullRequest],
        replies: dict[int, pb.PullResponse],
    ) -> NDArray[np.float32]:
        """Rows from all servers in the order of the batch."""
        rows: NDArray[np.float32] | None = None
        for index, part in partition.parts():
            place = next(place for place, asked in enumerate(requests[index].tables) if asked.table == table)
            data, count = replies[index].rows[place], part.stop - part.start
            dim = len(data) // (count * arrays.VALUE.itemsize)
            if rows is None:
                rows = np.empty((partition.keys.size, dim), np.float32)
            rows[part] = arrays.decode(data, arrays.VALUE, (count, dim), f"rows of table {table}")
        if rows is None:
            return np.empty((0, self._table(table).dim), np.float32)
        return partition.spread(rows)

    def _table(self, table: str) -> TableConfig:
        """A table's settings, when its rows do not tell what is needed; those made elsewhere are asked for once."""
        if table not in self._tables:
            reply = self._servers.status_of(0)
            self._tables |= {status.config.name: codec.table_from_proto(status.config) for status in reply.tables}
        if table not in self._tables:
            raise UnknownTable(f"the cluster has no table {table!r}; it has {sorted(self._tables)}")
        return self._tables[table]


def _added_names(request: pb.PushRequest) -> list[str]:
    return [update.name for update in request.variables if update.kind == pb.VariableUpdate.KIND_ADD]
