"""All that one parameter server holds, and the rules under which a request may touch it."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.ps import batch
from megalith.ps.fused import UNKNOWN
from megalith.ps.placement import Placement
from megalith.ps.replay import ARRAY_BYTES, AppliedPushes, Prepared
from megalith.ps.table import EmbeddingTable
from megalith.ps.variable import UpdateKind, Variable
from megalith.runtime.lease import Lease
from megalith.wire.errors import (
    DeadlinePassed,
    DuplicateKeys,
    FutureTime,
    InvalidRequest,
    NotReady,
    UnknownTable,
    UnknownVariable,
    some_of,
)
from megalith.wire.routing import Routing, check_run
from megalith.wire.schema import TableConfig, VariableConfig
from megalith.wire.variable_parts import VariableShape

_MAX_AHEAD_S = 86400  # of data time before the wall clock: clocks and time zones differ, but by less than a day
_ANSWERED = (UpdateKind.ADD, UpdateKind.RAISE)  # kinds whose new value is in the answer


@dataclass(frozen=True, slots=True)
class TableGradients:
    """One table's part of a push."""

    table: str
    keys: NDArray[np.int64]
    gradients: NDArray[np.float32]
    learning_rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class VariableUpdate:
    """One variable's part of a push."""

    name: str
    kind: UpdateKind
    value: NDArray[Any]


@dataclass(frozen=True, slots=True)
class TableValues:
    """Embeddings to set or to add, of one table."""

    table: str
    keys: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a write, and which of its writes it is."""

    client_id: str
    sequence: int
    incarnation: int = 0
    is_repeated: bool = False  # it may have been sent before
    first_try_s_ago: float = math.inf  # if so


Reply = tuple[
    str, list[NDArray[Any]] | None
]  # the kind of a write, and the arrays of its answer; None: not kept


class Store:
    """Tables and variables by name, behind the routing map.

    `_lock` guards the two dictionaries, the placement and the counters; tables and variables guard their own contents.
    The run is that of the first map and never changes, because rows of two runs must not be mixed.
    """

    def __init__(
        self,
        index: int,
        clock: Callable[[], float] = time.time,
        applied: AppliedPushes[Reply] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """`clock` is the wall clock, which no data can be far ahead of; `applied` remembers writes.

        Without a `lease` nobody else can get this server's place.
        """
        self._lock = threading.Lock()
        self._clock = clock
        self._lease = lease
        self._placement = Placement(index)
        self._run_id: str | None = None
        self._tables: dict[str, EmbeddingTable] = {}
        self._variables: dict[str, Variable] = {}
        self._applied = applied or AppliedPushes[Reply]()
        self.pulls = 0
        self.pushes = 0

    # --- routing ---

    def take_place(self, index: int) -> None:
        """From now on this is the ps of that index in the map; before the first map only."""
        with self._lock:
            self._placement = replace(self._placement, index=index)

    def route(self, routing: Routing | None, is_initialized: bool) -> None:
        """Obey this map. Until the chief has initialized its epoch, a missing table is a matter of time.

        WrongRun if it is of another run than the first one: what is here belongs to that.
        """
        with self._lock:
            if routing is not None:
                if self._run_id is not None:
                    check_run(self._run_id, routing.run_id, "the controller")
                self._run_id = routing.run_id
            self._placement = replace(
                self._placement, routing=routing, is_initialized=is_initialized
            )

    def check_run(self, run_id: str) -> None:
        """WrongRun for a request of another run than that of the first map, or of none."""
        if self._run_id is None:
            raise NotReady(f"ps {self._placement.index} is in no run yet; retry in a moment")
        check_run(run_id, self._run_id, f"ps {self._placement.index}")

    @contextmanager
    def serving(self, run_id: str, is_controller_away: bool) -> Iterator[None]:
        """Inside, a data request is served; `is_controller_away` is its client's word.

        WrongRun as in `check_run`. Without a lease another process may have this place: NotReady before anything is
        done. If the lease ends meanwhile, also because this process did not run, the answer is not given, and whether
        what was done counts is open: DeadlinePassed.
        """
        self.check_run(run_id)
        lease = None if is_controller_away else self._lease
        index = self._placement.index
        if lease is not None and not lease.is_held:
            raise NotReady(
                f"ps {index} has not heard its controller lately, so another process may have its place; ask the "
                "controller for the map, and retry in a moment"
            )
        yield
        if lease is not None and not lease.is_held:
            raise DeadlinePassed(
                f"ps {index} lost its controller while it served this request; another process may have its place"
            )

    @property
    def run_id(self) -> str:
        """Of the maps; empty = there was none yet."""
        return self._run_id or ""

    @property
    def epoch(self) -> int:
        """Of the newest map; 0 = none yet."""
        return self._placement.epoch

    def buckets(self) -> NDArray[np.bool_]:
        """Which buckets this server owns; without a map it may be any."""
        return self._placement.buckets()

    # --- creation ---

    def create_tables(self, epoch: int, configs: Sequence[TableConfig]) -> None:
        """Create what is missing and give what exists its new settings.

        One of another layout is a TableConflict, settings that cannot be are an InvalidSetting; nothing is changed.
        """
        _require_distinct("table", [config.name for config in configs])
        with self._lock:
            self._placement.checked(epoch)
            fresh = [
                EmbeddingTable(config) for config in configs if config.name not in self._tables
            ]
            known = [
                (self._tables[config.name], config)
                for config in configs
                if config.name in self._tables
            ]
            for table, config in known:
                table.check_config(config)
            for table, config in known:
                table.reconfigure(config)
            self._tables |= {table.config.name: table for table in fresh}

    def create_variables(self, epoch: int, configs: Sequence[VariableConfig]) -> None:
        """Create what is missing with its initial value; what exists keeps its value.

        One of another layout, or split into other parts, is a TableConflict and nothing is created.
        """
        _require_distinct("variable", [config.key for config in configs])
        with self._lock:
            placement = self._placement.checked(epoch)
            known: list[tuple[Variable, VariableConfig]] = []
            for config in configs:
                placement.check_owned_variable(config)
                known += [
                    (held, config)
                    for held in self._variables.values()
                    if _collide(held.config, config)
                ]
            for variable, config in known:
                variable.check_layout(config)
            for variable, config in known:
                variable.reconfigure(config)
            for config in configs:
                if config.key not in self._variables:
                    self._variables[config.key] = Variable(config)

    def describe_variables(self, epoch: int, names: Sequence[str]) -> list[VariableShape]:
        """The whole of each variable whose first part, or only one, is here."""
        with self._lock:
            self._placement.checked(epoch)
            first = {
                variable.config.name: variable
                for variable in self._variables.values()
                if variable.config.part is None or variable.config.part.index == 0
            }
            return [self._known_variable(first, name).whole for name in names]

    def adopt(self, table: EmbeddingTable | None = None, variable: Variable | None = None) -> None:
        """Take a restored table or variable, before there is a map."""
        with self._lock:
            if table is not None:
                self._tables[table.config.name] = table
            if variable is not None:
                self._variables[variable.config.key] = variable

    # --- data ---

    def pull(
        self, epoch: int, tables: Sequence[tuple[str, NDArray[np.int64]]], variables: Sequence[str]
    ) -> tuple[list[NDArray[np.float32]], list[NDArray[Any]]]:
        """Embeddings by table and values of variables, both in the order asked for."""
        _require_distinct("table", [name for name, _ in tables])
        with self._lock:
            placement = self._placement.checked(epoch)
            held = [(self._table(name), keys) for name, keys in tables]
            read = [self._known_variable(self._variables, key) for key in variables]
            self.pulls += 1
        for name, keys in tables:
            placement.check_owned(name, keys)
        return [table.lookup(keys) for table, keys in held], [variable.read() for variable in read]

    def pulled_size(
        self, tables: Sequence[tuple[str, NDArray[np.int64]]], variables: Sequence[str]
    ) -> tuple[int, int]:
        """Floats of rows and bytes of variables that `pull` would return; what is not here counts as nothing."""
        with self._lock:
            widths = [
                (self._tables[name].config.dim, keys)
                for name, keys in tables
                if name in self._tables
            ]
            read = [self._variables[key] for key in variables if key in self._variables]
        return sum(width * keys.size for width, keys in widths), sum(
            variable.config.initial.nbytes for variable in read
        )

    def push(
        self,
        epoch: int,
        client_id: str,
        sequence: int,
        gradients: Sequence[TableGradients],
        updates: Sequence[VariableUpdate],
        req_time_s: int = 0,
        step: int = 0,
        incarnation: int = 0,
        is_repeated: bool = False,
        first_try_s_ago: float = math.inf,
    ) -> list[NDArray[Any]]:
        """Apply everything or nothing, once for each (client id, sequence); returns the new values of ADD and RAISE.

        A fault of this server half-way is OutcomeLost, to every repetition too: the same push is never applied again. A
        repetition whose answer was not kept gets the values of now.
        """
        sender = Sender(client_id, sequence, incarnation, is_repeated, first_try_s_ago)
        values = self._once(
            "push", sender, lambda: self._prepared_push(epoch, gradients, updates, req_time_s, step)
        )
        if values is not None:
            return values
        with self._lock:  # a repeated push whose answer is not kept: the values now have it in them
            answered = [part for part in updates if part.kind in _ANSWERED]
            variables = [self._known_variable(self._variables, part.name) for part in answered]
        return [variable.read() for variable in variables]

    def _prepared_push(
        self,
        epoch: int,
        gradients: Sequence[TableGradients],
        updates: Sequence[VariableUpdate],
        req_time_s: int,
        step: int,
    ) -> Prepared[Reply]:
        self._check_time(req_time_s)
        _require_distinct("table", [part.table for part in gradients])
        _require_distinct("variable", [part.name for part in updates])
        with self._lock:
            placement = self._placement.checked(epoch)
            tables = [self._table(part.table) for part in gradients]
            variables = [self._known_variable(self._variables, part.name) for part in updates]
        rates = []
        for part, table in zip(gradients, tables, strict=True):
            placement.check_owned(part.table, part.keys)
            rates.append(
                table.check_gradients(part.keys, part.gradients, part.learning_rates or None, step)
            )
            batch.check_distinct(part.keys, part.table)
        for update, variable in zip(updates, variables, strict=True):
            variable.check(update.kind, update.value, step)

        def commit() -> (
            Reply
        ):  # everything is known to be applicable; from here on nothing is refused
            for part, table, its_rates in zip(gradients, tables, rates, strict=True):
                table.apply_checked(
                    part.keys, part.gradients, its_rates, req_time_s=req_time_s, step=step
                )
            values = []
            for update, variable in zip(updates, variables, strict=True):
                values.append(variable.apply(update.kind, update.value, step))
            with self._lock:
                self.pushes += 1
            return "push", [value for value in values if value is not None]

        answered = [update.value.nbytes for update in updates if update.kind in _ANSWERED]
        return Prepared(commit, _reply_bytes(answered), rest=("push", None))

    def assign(
        self,
        epoch: int,
        sender: Sender,
        parts: Sequence[TableValues],
        *,
        is_added: bool,
        req_time_s: int = 0,
    ) -> None:
        """Set the embeddings of rows, or add to them: everything or nothing, once for each sender."""
        kind = "assign_add" if is_added else "assign"
        self._once(kind, sender, lambda: self._prepared_assign(epoch, parts, kind, req_time_s))

    def _prepared_assign(
        self, epoch: int, parts: Sequence[TableValues], kind: str, req_time_s: int
    ) -> Prepared[Reply]:
        self._check_time(req_time_s)
        _require_distinct("table", [part.table for part in parts])
        with self._lock:
            placement = self._placement.checked(epoch)
            tables = [self._table(part.table) for part in parts]
        for part, table in zip(parts, tables, strict=True):
            placement.check_owned(part.table, part.keys)
            table.check_values(part.keys, part.values)

        def commit() -> Reply:
            for part, table in zip(parts, tables, strict=True):
                write = table.assign_add if kind == "assign_add" else table.assign
                write(part.keys, part.values, req_time_s)
            with self._lock:
                self.pushes += 1
            return kind, []

        return Prepared(commit)

    def reinitialize(
        self, epoch: int, sender: Sender, name: str, keys: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Make rows as new, once for each sender; by id 1 existed, 0 was created, -1 was not or has no such table."""
        reply = self._once(
            "reinitialize", sender, lambda: self._prepared_reinitialize(epoch, name, keys)
        )
        assert reply is not None  # it has no rest
        return reply[0]

    def _prepared_reinitialize(
        self, epoch: int, name: str, keys: NDArray[np.int64]
    ) -> Prepared[Reply]:
        with self._lock:
            placement = self._placement.checked(epoch)
            table = self._tables.get(name)
            if table is None:
                self._placement.check_initialized(f"table {name}")
        placement.check_owned(name, keys)

        def commit() -> Reply:
            status = (
                np.full(keys.size, UNKNOWN, np.int64) if table is None else table.reinitialize(keys)
            )
            with self._lock:
                self.pushes += 1
            return "reinitialize", [status]

        return Prepared(commit, _reply_bytes([keys.size * np.dtype(np.int64).itemsize]))

    def _once(
        self, kind: str, sender: Sender, prepare: Callable[[], Prepared[Reply]]
    ) -> list[NDArray[Any]] | None:
        """The answer to a write, done unless it was before, or None if it was and its answer is not kept.

        All kinds of writes share a client's sequence.
        """
        if not sender.client_id or sender.sequence < 1:
            raise InvalidRequest(
                f"`{kind}` needs a client id and a sequence from 1, got {sender.client_id!r} and {sender.sequence}"
            )
        known, reply = self._applied.once(
            sender.client_id,
            sender.sequence,
            prepare,
            sender.incarnation,
            is_repeated=sender.is_repeated,
            first_try_s_ago=sender.first_try_s_ago,
        )
        if known != kind:
            raise InvalidRequest(
                f"sequence {sender.sequence} of client {sender.client_id} was `{known}` and is now `{kind}`; "
                "each write has a sequence of its own"
            )
        return reply

    def expire(self) -> dict[str, int]:
        """Drop what is expired in every table; rows dropped, by table."""
        return {table.config.name: table.expire() for table in self.tables()}

    # --- what is there ---

    def tables(self) -> list[EmbeddingTable]:
        """By name."""
        with self._lock:
            return [self._tables[name] for name in sorted(self._tables)]

    def variables(self) -> list[Variable]:
        """By name, parts in order."""
        with self._lock:
            return [self._variables[name] for name in sorted(self._variables)]

    @property
    def rows(self) -> int:
        return sum(len(table) for table in self.tables())

    def count(self, name: str) -> int:
        """A counter of TableStats, over all tables."""
        return sum(int(getattr(table.stats(), name)) for table in self.tables())

    @property
    def nonfinite_updates(self) -> int:
        """Updates of variables that were left out because their result was not finite."""
        return sum(variable.nonfinite for variable in self.variables())

    @property
    def nbytes(self) -> int:
        """Memory of rows, index, variables and of what is remembered of writes."""
        tables = sum(table.nbytes for table in self.tables())
        variables = sum(variable.nbytes for variable in self.variables())
        return tables + variables + self._applied.nbytes

    @property
    def push_memory_bytes(self) -> int:
        """The part of `nbytes` by which repeated writes are recognized."""
        return self._applied.nbytes

    def _check_time(self, req_time_s: int) -> None:
        """Refuse times that no data can have.

        The newest time of a table is what its rows expire by, and it never goes back: one wrong time in the future
        would make all other rows of the table expired, for good.
        """
        if not 0 <= req_time_s < 2**32:
            raise InvalidRequest(f"req_time_s {req_time_s} is not in 0..2^32-1 Unix seconds")
        now_s = int(self._clock())
        if req_time_s > now_s + _MAX_AHEAD_S:
            raise FutureTime(
                f"req_time_s {req_time_s} ({_utc(req_time_s)}) is {req_time_s - now_s} s ahead of this server's clock, "
                f"{now_s} ({_utc(now_s)}); at most {_MAX_AHEAD_S} s are allowed: give the time of the data in Unix "
                "seconds, or 0 for none, and compare the clocks of the machines. Nothing was applied"
            )

    def _table(self, name: str) -> EmbeddingTable:
        if name not in self._tables:
            self._placement.check_initialized(f"table {name}")
            raise UnknownTable(
                f"ps {self._placement.index} has no table {name!r}; it has {some_of(self._tables)}"
            )
        return self._tables[name]

    def _known_variable(self, variables: Mapping[str, Variable], name: str) -> Variable:
        if name not in variables:
            self._placement.check_initialized(f"variable {name}")
            raise UnknownVariable(
                f"ps {self._placement.index} has no variable {name!r}; it has {some_of(self._variables)}"
            )
        return variables[name]


def _collide(held: VariableConfig, asked: VariableConfig) -> bool:
    """The same variable, but not another part of the same split."""
    if held.name != asked.name or held.part is None or asked.part is None:
        return held.name == asked.name
    return held.part.index == asked.part.index or held.part.count != asked.part.count


def _utc(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _reply_bytes(arrays: Iterable[int]) -> int:
    """Memory of a reply whose arrays have so many bytes each."""
    return sum(nbytes + ARRAY_BYTES for nbytes in arrays)


def _require_distinct(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DuplicateKeys(f"{what} {name} occurs twice in one request")
        seen.add(name)
