"""A running cluster as a training program sees it."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments
from megalith.client._background import Background
from megalith.client._begun import Begun
from megalith.client._controller import Controller, FindController
from megalith.client._feature import Feature
from megalith.client._feature_set import FeatureSet
from megalith.client._identity import Identity
from megalith.client._ids import Ids, RecentIds
from megalith.client._layout import Layout
from megalith.client._plans import PullPlan, PushPlan
from megalith.client._row_writes import RowWrites, TableValues
from megalith.client._servers import Servers
from megalith.client._table_stats import TableStats, VariableStats, by_table, by_variable
from megalith.client._variables import Variables
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import arrays, channel, codec
from megalith.wire.errors import InvalidRequest, OutcomeUnknown, UnknownTable
from megalith.wire.schema import AdmissionConfig, TableConfig, VariableConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull: a matrix per table, in the order of the ids asked for, and the variables asked for."""

    rows: dict[str, NDArray[np.float32]]
    variables: dict[str, NDArray[Any]]


def connect(
    address: str | FindController | None = None,
    *,
    model_dir: str | None = None,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 20.0,
    max_message_bytes: int = channel.DEFAULT_MAX_MESSAGE_BYTES,
    max_inflight: int = 8,
    max_inflight_bytes: int = 1 << 30,
    row_dtype: str = "float32",
    gradient_dtype: str = "float32",
    bulk_lane: bool = True,
) -> "Cluster":
    """Connect to a cluster by its controller's host:port, a function that finds it, or its model directory.

    Parameters
    ----------
    address, model_dir
        Exactly one of them.
    timeout_s
        How long a call may wait for servers that start, move or come back, in all.
    connect_timeout_s
        How long to wait here for a controller that answers. If none does, this raises PeerUnreachable; a controller
        whose cluster is still forming has answered. 0 asks nobody: a wrong address is then found by the first call.
    max_message_bytes
        Largest request or reply; not above the servers' --max-message-bytes.
    max_inflight
        Calls of pull_async and push_async that may be under way, and of begin_pull and begin_push; the next one waits.
    max_inflight_bytes
        Bytes of pulls and pushes that may be on their way at once; the next call waits.
    row_dtype, gradient_dtype
        float32, or float16 for half the bytes: what travels in a pull and in a push. Servers compute in float32.
    bulk_lane
        False sends pulls and pushes as unary gRPC calls, also where servers offer the faster lane.
    """
    max_inflight = _arguments.integer(max_inflight, "max_inflight")
    max_inflight_bytes = _arguments.integer(max_inflight_bytes, "max_inflight_bytes")
    for setting, value in (("timeout_s", timeout_s), ("connect_timeout_s", connect_timeout_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidRequest(f"{setting}={value!r} is not a number of seconds")
    if max_inflight < 1 or max_inflight_bytes < 1:
        raise InvalidRequest(
            f"max_inflight={max_inflight}, max_inflight_bytes={max_inflight_bytes}: below 1"
        )
    dtypes = [
        _wire_dtype(name, value)
        for name, value in (("row", row_dtype), ("gradient", gradient_dtype))
    ]
    controller = Controller(address, model_dir, timeout_s)
    if connect_timeout_s:
        try:
            controller.reach(min(connect_timeout_s, timeout_s))
        except BaseException:
            controller.close()
            raise
    servers = Servers(
        controller, max_message_bytes, max_inflight_bytes, max_inflight, use_lane=bulk_lane
    )
    return Cluster(controller, servers, timeout_s, max_inflight, *dtypes)


def _wire_dtype(name: str, value: str) -> np.dtype[Any]:
    dtypes: dict[str, np.dtype[Any]] = {"float32": arrays.VALUE, "float16": arrays.HALF}
    if value not in dtypes:
        raise InvalidRequest(f"{name}_dtype={value!r}: expected float32 or float16")
    return dtypes[value]


def _own_ids(ids: ArrayLike | Ids) -> ArrayLike | Ids:
    return ids if isinstance(ids, Ids) else arrays.as_array(ids, "ids").copy()


class Cluster:
    """Tables and variables on all parameter servers, and the controller. Thread-safe.

    Pulls may run at the same time. Pushes and other writes of one Cluster are sent one after the other: they are
    numbered, and by the number a server tells a repeated one from a new one.
    """

    def __init__(
        self,
        controller: Controller,
        servers: Servers,
        timeout_s: float,
        max_inflight: int,
        row_dtype: np.dtype[Any],
        gradient_dtype: np.dtype[Any],
    ) -> None:
        self.controller = controller
        self._servers, self._timeout_s = servers, timeout_s
        self._row_dtype, self._gradient_dtype = row_dtype, gradient_dtype
        self._background, self._recent = Background(max_inflight), RecentIds()
        self._identity = Identity()
        self._row_writes = RowWrites(servers, self._identity, timeout_s, self._table)
        self._tables: dict[str, TableConfig] = {}
        self._variables = Variables(servers, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, *, wait: bool = True) -> None:
        """Wait for calls under way and for pushes in the background or begun, give up other pulls, and disconnect.

        Without `wait`, everything that has not begun and every begun call is given up, and nothing is waited for; how
        many pushes that are is logged. So is a begun push that failed and whose result nobody asked for.
        """
        in_background = self._background.close(wait)
        begun = 0
        if wait:
            self._settle_before_closing()
        else:
            begun = self._give_up_last()
        self._servers.close()
        self.controller.close()
        if in_background or begun:
            logger.warning(
                "closed without waiting: gave up %d pushes in the background and %d begun",
                in_background,
                begun,
            )

    def _give_up_last(self) -> int:
        """How many writes are on their way without anybody who waits for them: 0 or 1. Nothing is waited for here."""
        last = self._identity.last_at_once()
        if last is None:
            return 0
        self._identity.say_untold(last)
        if not last.is_unattended or last.is_settled:
            return 0
        for index in last.open_parts:
            self._servers.count_unknown(index, "the client was closed without waiting")
        last.abandon(
            InvalidRequest(
                "the connection to the cluster was closed before the answer was asked for"
            )
        )
        return 1

    def _settle_before_closing(self) -> None:
        last = self._identity.last()
        if last is None:
            return
        try:
            last.settle()
        except OutcomeUnknown as error:
            for index in last.open_parts:
                self._servers.count_unknown(index, f"the client was closed; {error}")
        self._identity.say_untold(last)

    def settle(self) -> dict[str, NDArray[Any]]:
        """Wait for the outcome of this client's last write, and return what that write returned or raise its error.

        For who was told OutcomeUnknown: the write is repeated under its own number, so it is applied once. If nobody
        answers within `timeout_s` it stays OutcomeUnknown, and may be asked about again.
        """
        last = self._identity.last()
        return {} if last is None else last.result()

    def expect_epoch(self, epoch: int) -> None:
        """For who hears from the controller: there is a map of that epoch. No older one is used from now on."""
        self._servers.expect_epoch(epoch)

    @property
    def writes_unknown(self) -> int:
        """Parts of writes, one to one server each, of which nobody will know whether they were applied."""
        return self._servers.writes_unknown

    def create_tables(self, *configs: TableConfig) -> None:
        """Create tables on every server; those that exist with the same row layout keep their rows."""
        configs = tuple(_arguments.instances(configs, TableConfig, "create_tables"))
        requests = {
            index: pb.CreateTablesRequest(
                tables=[codec.table_to_proto(config) for config in configs]
            )
            for index in self._indices()
        }
        self._servers.call(lambda stub: stub.CreateTables, requests, self._timeout_s)
        self._tables |= {config.name: config for config in configs}

    def tables(self) -> dict[str, TableStats]:
        """What all servers together hold of each table, and what they left out, by name."""
        return by_table(
            self._servers.status_of(index, self._timeout_s) for index in self._indices()
        )

    def variables(self) -> dict[str, VariableStats]:
        """In how many parts servers hold each variable, and how many of its updates they left out, by name."""
        return by_variable(
            self._servers.status_of(index, self._timeout_s) for index in self._indices()
        )

    def expire(self) -> dict[str, int]:
        """Drop what is expired at each table's data time, on every server; rows dropped, by table.

        Servers do so by themselves every --expire-every-s, and when a table with a memory budget is full.
        """
        dropped: Counter[str] = Counter()
        for index in self._indices():
            request = pb.ExpireRequest()
            dropped.update(
                self._servers.ask(index, lambda stub: stub.Expire, request, self._timeout_s).dropped
            )
        return dict(sorted(dropped.items()))

    def _indices(self) -> range:
        return range(len(self._servers.routing().addresses))

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
            self,
            features,
            layouts,
            merge=merge,
            admission=admission,
            memory_budget_bytes=memory_budget_bytes,
        )

    def create_variables(self, *configs: VariableConfig) -> None:
        """Create variables; those that exist keep their values. One above 128 KiB is split over the servers."""
        self._variables.create(_arguments.instances(configs, VariableConfig, "create_variables"))

    def pull(
        self, tables: Mapping[str, ArrayLike | Ids] | None = None, variables: Iterable[str] = ()
    ) -> Pulled:
        """Rows of ids by table, and variables by name: one call to each server concerned.

        An id that no push has touched reads zeros. Duplicate ids give equal rows.
        """
        plan = self._pull_plan(tables, names := _arguments.names(variables, "variables"))
        return self._pulled(plan, names, self._servers.exchange(plan.calls, self._timeout_s))

    def begin_pull(
        self, tables: Mapping[str, ArrayLike | Ids] | None = None, variables: Iterable[str] = ()
    ) -> Begun[Pulled]:
        """Send a `pull` and return; the answer is waited for, and what failed is sent again, when it is asked for.

        For a loop that has work of its own meanwhile: no thread takes part, which `pull_async` pays 1 to 2 ms for. With
        `max_inflight` calls begun, waits for the oldest. A server keeps a reply that is not taken for 30 s.
        """
        plan = self._pull_plan(tables, names := _arguments.names(variables, "variables"))
        return self._servers.begin_pull(
            plan.calls, self._timeout_s, lambda replies: self._pulled(plan, names, replies)
        )

    def _pull_plan(
        self, tables: Mapping[str, ArrayLike | Ids] | None, variables: list[str]
    ) -> PullPlan:
        by_table = _arguments.by_name(tables, "tables", "ids")
        keys = self._variables.keys(variables)
        return PullPlan(self._servers.routing(), by_table, keys, self._recent, self._row_dtype)

    def _pulled(self, plan: PullPlan, variables: list[str], replies: dict[int, Any]) -> Pulled:
        return Pulled(
            plan.rows(self._table), self._variables.joined(variables, plan.variables(replies))
        )

    def pull_async(
        self, tables: Mapping[str, ArrayLike | Ids] | None = None, variables: Iterable[str] = ()
    ) -> "Future[Pulled]":
        """`pull` in the background. With `max_inflight` calls under way, waits for one of them first.

        Ids are copied, so that the caller may change its arrays meanwhile; `Ids` are not.
        """
        names = tuple(_arguments.names(variables, "variables"))
        own = {
            table: _own_ids(ids)
            for table, ids in _arguments.by_name(tables, "tables", "ids").items()
        }
        return self._background.pull(lambda: self.pull(own, names))

    def push(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None = None,
        *,
        variables: Mapping[str, ArrayLike] | None = None,
        add: Mapping[str, ArrayLike] | None = None,
        assign: Mapping[str, ArrayLike] | None = None,
        at_least: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, tuple[float, ...]] | None = None,
        req_time_s: int = 0,
        step: int = 0,
    ) -> dict[str, NDArray[Any]]:
        """Apply gradients to rows and variables, one call to each server concerned; gradients of equal ids are summed.

        Each server applies its part once, whole, however often the call had to be repeated. Returns the new values of
        the variables in `add` and `at_least`.

        OutcomeUnknown means that some servers did not answer within the client's `timeout_s`, and may have applied
        their parts. Do not push the same gradients again: `settle()` asks for the outcome, and so does the next write
        of this client before it sends anything. OutcomeLost means that a server was replaced or failed before it
        answered: nobody will know about its part, which is counted in `writes_unknown` and not sent again. The parts
        of the other servers are applied.

        Parameters
        ----------
        gradients
            (ids, gradients [ids, dim]) by table.
        variables, add, assign
            Gradients, summands and new values of variables, by name.
        at_least
            The least that each element of a variable becomes, by name; to do it again changes nothing, ever.
        learning_rates
            One rate per segment by table, in place of the table's own.
        req_time_s
            Unix time of the data, in seconds, by which rows expire. A row keeps the latest time that it was given.
            Without one (0) rows keep their time, and new ones get the newest of their table. A time more than a day
            ahead of the servers' clock is a FutureTime.
        step
            Global step, for learning-rate schedules and optimizers that count steps.
        """
        plan = self._push_plan(
            gradients, variables, add, assign, at_least, learning_rates, req_time_s, step
        )
        joined = [*(add or {}), *(at_least or {})]

        def read(replies: dict[int, Any]) -> dict[str, NDArray[Any]]:
            return self._variables.joined(joined, plan.added(replies))

        return self._identity.write(
            plan.messages(), lambda: self._servers.push(plan.calls(), self._timeout_s, read)
        ).result()

    def begin_push(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None = None,
        *,
        variables: Mapping[str, ArrayLike] | None = None,
        add: Mapping[str, ArrayLike] | None = None,
        assign: Mapping[str, ArrayLike] | None = None,
        at_least: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, tuple[float, ...]] | None = None,
        req_time_s: int = 0,
        step: int = 0,
    ) -> Begun[dict[str, NDArray[Any]]]:
        """Send a `push` and return; the answer is waited for, and what failed is sent again, when it is asked for.

        The next push, or other write, first waits for this one, and so does `close`: one at a time is on its way. An
        error of this one is raised by its own `result` only, and logged if nobody has asked for that by then. Arrays
        must not change until then. While its outcome is not known `result` raises OutcomeUnknown; it may be asked
        again, which repeats the push under the same number.
        """
        plan = self._push_plan(
            gradients, variables, add, assign, at_least, learning_rates, req_time_s, step
        )
        joined = [*(add or {}), *(at_least or {})]

        def read(replies: dict[int, Any]) -> dict[str, NDArray[Any]]:
            return self._variables.joined(joined, plan.added(replies))

        return self._identity.write(
            plan.messages(), lambda: self._servers.begin_push(plan.calls(), self._timeout_s, read)
        )

    def _push_plan(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None,
        variables: Mapping[str, ArrayLike] | None,
        add: Mapping[str, ArrayLike] | None,
        assign: Mapping[str, ArrayLike] | None,
        at_least: Mapping[str, ArrayLike] | None,
        learning_rates: Mapping[str, tuple[float, ...]] | None,
        req_time_s: int,
        step: int,
    ) -> PushPlan:
        by_table = _arguments.by_name(gradients, "gradients", "(ids, gradients)")
        rates = _arguments.by_name(learning_rates, "learning_rates", "one rate per segment")
        req_time_s = _arguments.integer(req_time_s, "req_time_s")
        step = _arguments.integer(step, "step")
        unused = sorted(set(rates) - set(by_table))
        if unused:
            raise InvalidRequest(
                f"learning_rates of tables {unused}, which get no gradients in this push"
            )
        plan = PushPlan(self._servers.routing(), self._table, self._recent, self._gradient_dtype)
        for table, given in by_table.items():
            ids, values = _arguments.pair(
                given, f"table {table}: gradients are", "(ids, gradients [ids, dim])"
            )
            plan.add_gradients(table, ids, values, _arguments.rates(rates.get(table, ()), table))
        plan.add_updates(
            self._variables.updates(
                _arguments.by_name(variables, "variables", "gradients"),
                _arguments.by_name(add, "add", "summands"),
                _arguments.by_name(assign, "assign", "new values"),
                _arguments.by_name(at_least, "at_least", "least values"),
            )
        )
        for message in plan.messages().values():
            message.req_time_s, message.step = req_time_s, step
        return plan

    def push_async(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None = None,
        *,
        variables: Mapping[str, ArrayLike] | None = None,
        add: Mapping[str, ArrayLike] | None = None,
        assign: Mapping[str, ArrayLike] | None = None,
        at_least: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, tuple[float, ...]] | None = None,
        req_time_s: int = 0,
        step: int = 0,
    ) -> "Future[dict[str, NDArray[Any]]]":
        """`push` in the background; pushes are sent in the order of these calls. Arrays must not change until done.

        With `max_inflight` calls under way, waits for one of them first. Cancelling the future of a push that has not
        begun leaves it out whole; one that has begun goes on.
        """
        return self._background.push(
            lambda: self.push(
                gradients,
                variables=variables,
                add=add,
                assign=assign,
                at_least=at_least,
                learning_rates=learning_rates,
                req_time_s=req_time_s,
                step=step,
            )
        )

    def assign(self, values: TableValues, *, req_time_s: int = 0) -> None:
        """Set rows to (ids, values [ids, dim]) by table, creating absent ones; of repeated ids the last is set.

        The optimizer state of existing rows stays. Like a push it is applied once, whole, by each server, and an absent
        id that the table's filter does not admit, or that finds no room, is left out and counted there. `req_time_s` is
        that of `push`.
        """
        self._row_writes.assign(values, req_time_s, is_added=False)

    def assign_add(self, values: TableValues, *, req_time_s: int = 0) -> None:
        """Add (ids, values [ids, dim]) to rows by table, in absent rows to their initial value; else as `assign`."""
        self._row_writes.assign(values, req_time_s, is_added=True)

    def reinitialize(self, table: str, ids: ArrayLike) -> NDArray[np.int8]:
        """Make rows as new, embedding and optimizer state, creating absent ones whatever the table's filter says.

        The status of each id, in order: 1 it had a row, 0 it was created now, -1 there is no such table or no room.
        """
        return self._row_writes.reinitialize(table, ids)

    def _table(self, table: str) -> TableConfig:
        """A table's settings, when its rows do not tell what is needed; those made elsewhere are asked for once."""
        if table not in self._tables:
            reply = self._servers.status_of(0, self._timeout_s)
            self._tables |= {
                status.config.name: codec.table_from_proto(status.config) for status in reply.tables
            }
        if table not in self._tables:
            raise UnknownTable(f"the cluster has no table {table!r}; it has {sorted(self._tables)}")
        return self._tables[table]
