"""A running cluster as a training program sees it."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.client import _arguments
from megalith.client._blobs import ClusterBlobs
from megalith.client._features.feature import Feature
from megalith.client._features.feature_set import FeatureSet
from megalith.client._features.layout import Layout
from megalith.client._ids import Ids, RecentIds
from megalith.client._plans import PullPlan, PushOptions, PushPlan, check_known
from megalith.client._row_writes import RowWrites, ValuesByTable
from megalith.client._table_stats import TableStats, VariableStats, by_table, by_variable
from megalith.client._tables import Tables
from megalith.client._transport.pending_call import PendingCall
from megalith.client._transport.requests import DataCall
from megalith.client._transport.servers import Servers
from megalith.client._variables import DenseVariables
from megalith.control.controller import Controller
from megalith.errors import InvalidRequest
from megalith.schema import AdmissionConfig, TableConfig, VariableConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull: a matrix per table, in the order of its ids, and the variables."""

    rows: dict[str, NDArray[np.float32]]
    variables: dict[str, NDArray[Any]]


class Cluster:
    """Tables and variables on all parameter servers, and the controller. Thread-safe.

    Pulls may run at the same time. Pushes and other writes of one Cluster are sent one after the
    other: they are numbered, and by the number a server tells a repeated one from a new one.
    """

    def __init__(
        self,
        controller: Controller,
        servers: Servers,
        timeout_s: float,
        row_dtype: np.dtype[Any],
        gradient_dtype: np.dtype[Any],
    ) -> None:
        self.controller = controller
        self._servers = servers
        self._timeout_s = timeout_s
        self._row_dtype = row_dtype
        self._gradient_dtype = gradient_dtype

        self._recent = RecentIds()
        self._tables = Tables(servers, timeout_s)
        self._row_writes = RowWrites(servers, timeout_s, self._tables.config_of)
        self._variables = DenseVariables(servers, timeout_s)
        self._blobs = ClusterBlobs(servers, timeout_s)

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
        """Wait for the outcome of the last write, give up pulls that were begun, and disconnect.

        With `wait=False` it disconnects at once. A push that was begun is then given up, and the
        log says so. If a push that was begun has failed and nobody asked for its result, its error
        is logged too.
        """
        given_up = self._servers.close(wait=wait)
        self.controller.close()
        if given_up:
            logger.warning("closed without waiting: gave up %d pushes that were begun", given_up)

    # --- tables, variables and features ---

    def create_tables(self, *configs: TableConfig, allow_new_layout: bool = False) -> None:
        """Create tables on every server.

        Those that exist with the same row layout keep their rows. One with another layout is a
        TableConflict. With `allow_new_layout` a table that came out of a checkpoint takes the new
        one: with other optimizers the weights of its rows stay and the optimizers begin anew, with
        another width its rows are dropped; how many is logged. A table that a program of this run
        has created stays a TableConflict.
        """
        checked = _arguments.instances(configs, TableConfig, "create_tables")
        self._tables.create(checked, allow_new_layout=allow_new_layout)

    def create_variables(self, *configs: VariableConfig) -> None:
        """Create variables; those that exist keep their values.

        One above 128 KiB is split over the servers.
        """
        checked = _arguments.instances(configs, VariableConfig, "create_variables")
        self._variables.create(checked)

    def create_features(
        self,
        *features: Feature,
        layouts: Mapping[str, Layout] | None = None,
        merge: bool = True,
        admission: AdmissionConfig | None = None,
        memory_budget_bytes: int = 0,
    ) -> FeatureSet:
        """Create the tables of a model's features, and return the features as the model sees them.

        Tables that exist with the same row layout are kept.

        Parameters
        ----------
        layouts
            What the model sees, by name; None: an array per feature, under its name.
        merge
            True: features with slots and equal slices live in one table, which costs less than one
            table each. The table is named after all of them, so a feature that is added later
            starts another table. False, or a feature's own `table`, avoids that.
        admission
            The kind and size of the filter of features with an `occurrence_threshold`. The
            thresholds are those of the features.
        memory_budget_bytes
            The most memory of each table on each server; 0 is no limit.
        """
        return FeatureSet(
            self,
            features,
            layouts,
            merge=merge,
            admission=admission,
            memory_budget_bytes=memory_budget_bytes,
        )

    def table_stats(self) -> dict[str, TableStats]:
        """What all servers together hold of each table, and what they left out, by name."""
        status = self._tables.status_of_all()
        return by_table(status)

    def variable_stats(self) -> dict[str, VariableStats]:
        """How many parts of each variable servers hold, and how many updates they left out."""
        status = self._tables.status_of_all()
        return by_variable(status)

    def expire(self) -> dict[str, int]:
        """Drop expired rows now, on every server. Returns how many were dropped, by table.

        Servers do so by themselves every --expire-every-s, and when a table with a memory budget is
        full.
        """
        return self._tables.expire()

    def drop_table(self, name: str) -> int:
        """Drop a whole table on every server; how many rows it had.

        For a table that came out of a checkpoint and that the model has no longer: one that a
        program of this run has created is a TableConflict. UnknownTable if no server has it.
        """
        return self._tables.drop(name)

    # --- pulls ---

    def pull(
        self, tables: Mapping[str, ArrayLike | Ids] | None = None, variables: Iterable[str] = ()
    ) -> Pulled:
        """Rows of ids by table, and variables by name: one call to each server concerned.

        An id that no push has touched reads zeros. Duplicate ids give equal rows.

            pulled = cluster.pull({"user": [7, 42, 7]}, variables=["bias"])
            pulled.rows["user"]         # a matrix of three rows
            pulled.variables["bias"]
        """
        names = _arguments.names(variables, "variables")
        plan = self._pull_plan(tables, names)
        replies = self._servers.pull(plan.calls, self._timeout_s)
        return self._pulled(plan, names, replies)

    def begin_pull(
        self, tables: Mapping[str, ArrayLike | Ids] | None = None, variables: Iterable[str] = ()
    ) -> PendingCall[Pulled]:
        """Send a `pull` and return; its `result()` waits for the answer.

        It is for a loop that has work of its own meanwhile. A call that failed is made again when
        its result is asked for. If `max_inflight` calls are under way, `begin_pull` first waits for
        the oldest one. A server keeps a reply for 30 s. Arrays of ids may be changed afterwards,
        but an `Ids` may not.
        """
        names = _arguments.names(variables, "variables")
        plan = self._pull_plan(tables, names)

        def read(replies: dict[int, Any]) -> Pulled:
            return self._pulled(plan, names, replies)

        return self._servers.begin_pull(plan.calls, self._timeout_s, read)

    def _pull_plan(
        self, tables: Mapping[str, ArrayLike | Ids] | None, variables: list[str]
    ) -> PullPlan:
        ids_by_table = _arguments.by_name(tables, "tables", "ids")
        parts = self._variables.part_names(variables)
        routing = self._servers.routing()
        return PullPlan(
            routing,
            ids_by_table,
            parts,
            self._recent,
            self._row_dtype,
        )

    def _pulled(self, plan: PullPlan, variables: list[str], replies: dict[int, Any]) -> Pulled:
        rows = plan.rows(self._tables.config_of)
        parts = plan.variables(replies)
        values = self._variables.joined(variables, parts)

        return Pulled(rows, values)

    # --- pushes ---

    def push(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None = None,
        **options: Unpack[PushOptions],
    ) -> dict[str, NDArray[Any]]:
        """Apply gradients to rows and variables: one call to each server concerned.

            cluster.push({"user": (ids, gradients)})
            cluster.push({"user": (ids, gradients)}, variable_gradients={"bias": [0.1]}, step=7)
            cluster.push(add_to_variables={"seen": 128})     # returns {"seen": its new value}

        Each server applies its part once, whole, however often the call had to be repeated. Returns
        the new values of the variables in `add_to_variables` and `raise_variables`.

        OutcomeUnknown means that some servers did not answer within the client's `timeout_s`, and
        may have applied their parts. Do not push the same gradients again: `wait_for_last_write()`
        asks for the outcome, and so does the next write of this client before it sends anything.
        OutcomeLost means that a server was replaced or failed before it answered: nobody will know
        about its part, which is counted in `writes_unknown` and not sent again. The parts of the
        other servers are applied.

        Parameters
        ----------
        gradients
            (ids, gradients [ids, dim]) by table. Gradients of equal ids are summed.
        variable_gradients, add_to_variables, assign_variables
            Gradients, summands and new values of variables, by name.
        raise_variables
            Raises each element of a variable to at least this value, by name. Raising twice has the
            effect of raising once.
        learning_rates
            One rate per segment by table, in place of the table's own.
        req_time_s
            Unix time of the data, in seconds, by which rows expire. A row keeps the latest time
            that it was given. Without one (0) rows keep their time, and new ones get the newest of
            their table. A time more than a day ahead of the servers' clock is a FutureTime.
        step
            Global step, for learning-rate schedules and optimizers that count steps.
        """
        calls, read = self._push_calls(gradients, options)
        call = self._servers.write(calls, self._timeout_s, read)
        return call.result()

    def begin_push(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None = None,
        **options: Unpack[PushOptions],
    ) -> PendingCall[dict[str, NDArray[Any]]]:
        """Send a `push` and return; its `result()` waits for the answer.

        One write of a client is on its way at a time: the next push, or other write, first waits
        for this one, and so does `close`. An error of this push is raised by its own `result`. If
        nobody has asked for the result by the next write, the error is logged. Do not change the
        arrays before the push has its result. While the outcome is not known, `result` raises
        OutcomeUnknown. Ask again then: that repeats the push under the same number.
        """
        calls, read = self._push_calls(gradients, options)
        return self._servers.begin_write(calls, self._timeout_s, read)

    def _push_calls(
        self,
        gradients: Mapping[str, tuple[ArrayLike | Ids, ArrayLike]] | None,
        options: PushOptions,
    ) -> tuple[dict[int, DataCall], Callable[[dict[int, Any]], dict[str, NDArray[Any]]]]:
        """The calls to each server, and what makes the result of their replies."""
        check_known(options)
        by_table = _arguments.by_name(gradients, "gradients", "(ids, gradients)")
        rates = _rates(options.get("learning_rates"), by_table)
        req_time_s = _arguments.integer(options.get("req_time_s", 0), "req_time_s")
        step = _arguments.integer(options.get("step", 0), "step")

        routing = self._servers.routing()
        plan = PushPlan(
            routing,
            self._tables.config_of,
            self._recent,
            self._gradient_dtype,
        )

        for table, given in by_table.items():
            where = f"table {table}: gradients are"
            ids, values = _arguments.pair(given, where, "(ids, gradients [ids, dim])")
            own_rates = rates.get(table, ())
            plan.add_gradients(table, ids, values, own_rates)

        updates = self._variables.updates(options)
        plan.add_updates(updates)
        plan.set_time(req_time_s, step)

        added = options.get("add_to_variables") or ()
        raised = options.get("raise_variables") or ()
        changed = [*added, *raised]

        def read(replies: dict[int, Any]) -> dict[str, NDArray[Any]]:
            values = plan.new_values(replies)
            return self._variables.joined(changed, values)

        return plan.calls(), read

    def wait_for_last_write(self) -> dict[str, NDArray[Any]]:
        """Wait for the outcome of this client's last write; return its result or raise its error.

        For a caller that was told OutcomeUnknown: the write is repeated under its own number, so it
        is applied once. If nobody answers within `timeout_s` it stays OutcomeUnknown, and may be
        asked about again.
        """
        last = self._servers.last_write()
        if last is None:
            return {}

        result: dict[str, NDArray[Any]] = last.result()
        return result

    @property
    def writes_unknown(self) -> int:
        """Parts of writes of which nobody will know whether they were applied.

        A part is what one server got of a write.
        """
        return self._servers.writes_unknown

    def expect_epoch(self, epoch: int) -> None:
        """Use no map older than that epoch from now on."""
        self._servers.expect_epoch(epoch)

    def follow_session(self, is_in_session: Callable[[], bool]) -> None:
        """For a worker, which has a session: `is_in_session` says whether the session stands.

        While it does not, servers answer only if they do not hear the controller either.
        """
        self._servers.follow_session(is_in_session)

    # --- rows by their values ---

    def assign_rows(self, values: ValuesByTable, *, req_time_s: int = 0) -> None:
        """Set rows to (ids, values [ids, dim]) by table, creating absent ones.

        If an id is repeated, its last values count. Rows that exist keep their optimizer state.
        Each server applies its part once, whole, as with a push. An id without a row is left out
        and counted if the table's filter does not admit it or the table has no room.
        `req_time_s` is that of `push`.
        """
        self._row_writes.assign(values, req_time_s, is_added=False)

    def add_to_rows(self, values: ValuesByTable, *, req_time_s: int = 0) -> None:
        """Add (ids, values [ids, dim]) to rows by table.

        An id without a row gets one first, from the initializers. The rest is as in `assign_rows`.
        """
        self._row_writes.assign(values, req_time_s, is_added=True)

    def reinitialize_rows(self, table: str, ids: ArrayLike) -> NDArray[np.int8]:
        """Set rows back to their initial values, with new optimizer state.

        An id without a row gets one, whatever the table's filter says. Returns a status for each
        id, in order. 1: it had a row. 0: the row was made now. -1: there is no such table, or no
        room.
        """
        return self._row_writes.reinitialize(table, ids)

    # --- blobs ---

    def put_blob(self, name: str, data: bytes) -> None:
        """Store bytes under a name, in place of what the name had; checkpoints have them too.

        It is an assignment. If a call has to be repeated, that has no further effect, and of two
        programs that write one name the last one counts.

        One blob has to fit a message (MessageTooLarge), and all those of a server its
        --max-blob-bytes (LimitExceeded). Then nothing is changed.
        """
        self._blobs.put(name, data)

    def get_blob(self, name: str) -> bytes:
        """The bytes under a name; UnknownBlob if there are none."""
        return self._blobs.get(name)

    def blobs(self) -> dict[str, int]:
        """How many bytes each blob has, by name."""
        return self._blobs.sizes()

    def drop_blob(self, name: str) -> int:
        """Forget a blob; how many bytes it had. UnknownBlob if there is none.

        Checkpoints that have it keep it. A drop whose answer was lost is repeated, and then finds
        nothing: that is an UnknownBlob too, and the blob is gone.
        """
        return self._blobs.drop(name)


def _rates(given: Any, tables: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Learning rates by table, for tables that get gradients."""
    by_table = _arguments.by_name(given, "learning_rates", "one rate per segment")
    not_trained = set(by_table) - set(tables)
    unused = sorted(not_trained)
    if unused:
        raise InvalidRequest(
            f"learning_rates of tables {unused}, which get no gradients in this push"
        )

    checked = {}
    for table, rates in by_table.items():
        checked[table] = _arguments.rates(rates, table)

    return checked
