"""Pushes and writes of rows: each is checked whole, then applied, once for each sequence."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.engine.table import checks
from megalith.engine.variable.variable import UpdateKind
from megalith.errors import FutureTime, InvalidRequest
from megalith.ps.store.contents import Contents, require_distinct
from megalith.ps.store.remembered_client import ARRAY_BYTES
from megalith.ps.store.replay import AppliedPushes, Prepared
from megalith.ps.store.write_gate import WriteGate
from megalith.wire import arrays

_UNKNOWN = -1  # status of an id whose table does not exist
_ANSWERED = (UpdateKind.ADD, UpdateKind.RAISE)  # kinds whose new value is in the answer

# The kind of a write, and the arrays of its answer; None: not kept
WriteReply = tuple[str, list[NDArray[Any]] | None]

# Of data time before the wall clock: clocks and time zones differ, but by less than a day
_MAX_AHEAD_S = 86400


@dataclass(frozen=True, slots=True)
class TableGradients:
    """One table's part of a push."""

    table: str
    ids: NDArray[np.int64]
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
    ids: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a write, and which of its writes it is."""

    client_id: str
    sequence: int
    incarnation: int = 0
    is_repeated: bool = False  # it may have been sent before
    first_try_s_ago: float = math.inf  # if so
    reached_predecessor: bool = False  # an earlier try, the process that this one has replaced


class Writes:
    """Everything that changes rows and variables. `_lock` guards the count.

    `clock` is the wall clock, which no data can be far ahead of; `applied` remembers writes, and
    each is done inside `gate`.
    """

    def __init__(
        self,
        contents: Contents,
        applied: AppliedPushes[WriteReply],
        gate: WriteGate,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._contents = contents
        self._applied = applied
        self._gate = gate
        self._clock = clock
        self._lock = threading.Lock()
        self.count = 0  # those that were applied

    def push(
        self,
        epoch: int,
        sender: Sender,
        gradients: Sequence[TableGradients],
        updates: Sequence[VariableUpdate],
        req_time_s: int,
        step: int,
    ) -> list[NDArray[Any]]:
        """Apply everything or nothing; returns the new values of ADD and RAISE.

        A fault of this server half-way is OutcomeLost, to every repetition too: the same push is
        never applied again. A repetition whose answer was not kept gets the values of now.
        """

        def prepare() -> Prepared[WriteReply]:
            return self._prepare_push(epoch, gradients, updates, req_time_s, step)

        values = self._once("push", sender, prepare)
        if values is not None:
            return values

        # A repeated push whose answer is not kept: the values of now have it in them
        answered = [update.name for update in updates if update.kind in _ANSWERED]
        return [variable.read() for variable in self._contents.present_variables(answered)]

    def _prepare_push(
        self,
        epoch: int,
        gradients: Sequence[TableGradients],
        updates: Sequence[VariableUpdate],
        req_time_s: int,
        step: int,
    ) -> Prepared[WriteReply]:
        now_s = int(self._clock())
        check_time(req_time_s, now_s)

        table_names = [part.table for part in gradients]
        variable_names = [update.name for update in updates]
        require_distinct("table", table_names)
        require_distinct("variable", variable_names)

        found = self._contents.find(epoch, table_names, variable_names)

        rates = []

        for part, table in zip(gradients, found.tables, strict=True):
            found.buckets.check_owned(part.table, part.ids)

            asked_rates = part.learning_rates or None
            used_rates = table.check_gradients(part.ids, part.gradients, asked_rates, step)
            rates.append(used_rates)

            checks.check_distinct(part.ids, part.table)

        for update, variable in zip(updates, found.variables, strict=True):
            variable.check(update.kind, update.value, step)

        # Everything is known to be applicable; from here on nothing is refused
        def commit() -> WriteReply:
            for part, table, its_rates in zip(gradients, found.tables, rates, strict=True):
                table.apply_checked(
                    part.ids, part.gradients, its_rates, req_time_s=req_time_s, step=step
                )

            values = []
            for update, variable in zip(updates, found.variables, strict=True):
                value = variable.apply(update.kind, update.value, step)
                if value is not None:
                    values.append(value)

            self._note()
            return "push", values

        answered = [update.value.nbytes for update in updates if update.kind in _ANSWERED]
        reply_bytes = _reply_bytes(answered)
        return Prepared(commit, reply_bytes, rest=("push", None))

    def assign(
        self,
        epoch: int,
        sender: Sender,
        parts: Sequence[TableValues],
        *,
        is_added: bool,
        req_time_s: int,
    ) -> None:
        """Set the embeddings of rows, or add to them: everything or nothing."""
        kind = "assign_add" if is_added else "assign"
        self._once(kind, sender, lambda: self._prepare_assign(epoch, parts, kind, req_time_s))

    def _prepare_assign(
        self, epoch: int, parts: Sequence[TableValues], kind: str, req_time_s: int
    ) -> Prepared[WriteReply]:
        check_time(req_time_s, int(self._clock()))
        names = [part.table for part in parts]

        require_distinct("table", names)
        found = self._contents.find(epoch, names)

        for part, table in zip(parts, found.tables, strict=True):
            found.buckets.check_owned(part.table, part.ids)
            table.check_values(part.ids, part.values)

        def commit() -> WriteReply:
            for part, table in zip(parts, found.tables, strict=True):
                if kind == "assign_add":
                    table.assign_add(part.ids, part.values, req_time_s)
                else:
                    table.assign(part.ids, part.values, req_time_s)

            self._note()
            return kind, []

        return Prepared(commit)

    def reinitialize(
        self, epoch: int, sender: Sender, name: str, ids: NDArray[np.int64]
    ) -> NDArray[np.int8]:
        """Make rows as new.

        By id 1 existed, 0 was created, -1 was not or has no such table.
        """

        def prepare() -> Prepared[WriteReply]:
            return self._prepare_reinitialize(epoch, name, ids)

        reply = self._once("reinitialize", sender, prepare)
        assert reply is not None  # it has no rest
        return reply[0]

    def _prepare_reinitialize(
        self, epoch: int, name: str, ids: NDArray[np.int64]
    ) -> Prepared[WriteReply]:
        buckets, table = self._contents.find_table(epoch, name)
        buckets.check_owned(name, ids)

        def commit() -> WriteReply:
            status = np.full(ids.size, _UNKNOWN, arrays.STATUS)
            if table is not None:
                status[:] = table.reinitialize(ids)

            self._note()
            return "reinitialize", [status]

        return Prepared(commit, _reply_bytes([ids.size * arrays.STATUS.itemsize]))

    def _once(
        self, kind: str, sender: Sender, prepare: Callable[[], Prepared[WriteReply]]
    ) -> list[NDArray[Any]] | None:
        """The answer to a write, which is done unless it was before.

        None if it was done before and its answer is not kept. All kinds of writes share a client's
        sequence.
        """
        if not sender.client_id or sender.sequence < 1:
            raise InvalidRequest(
                f"`{kind}` needs a client id and a sequence from 1, got {sender.client_id!r} and "
                f"{sender.sequence}"
            )

        with self._gate.passing():
            known, reply = self._applied.once(
                sender.client_id,
                sender.sequence,
                prepare,
                sender.incarnation,
                is_repeated=sender.is_repeated,
                first_try_s_ago=sender.first_try_s_ago,
                reached_predecessor=sender.reached_predecessor,
            )

        if known != kind:
            raise InvalidRequest(
                f"sequence {sender.sequence} of client {sender.client_id} was `{known}` and is now "
                f"`{kind}`; each write has a sequence of its own"
            )

        return reply

    def _note(self) -> None:
        with self._lock:
            self.count += 1


def _reply_bytes(sizes: Iterable[int]) -> int:
    """Memory of a reply whose arrays have so many bytes each."""
    return sum(nbytes + ARRAY_BYTES for nbytes in sizes)


def check_time(req_time_s: int, now_s: int) -> None:
    """Refuse times that no data can have; `now_s` is the wall clock's.

    The newest time of a table is what its rows expire by, and it never goes back: one wrong time in
    the future would make all other rows of the table expired, for good.
    """
    if not 0 <= req_time_s < 2**32:
        raise InvalidRequest(f"req_time_s {req_time_s} is not in 0..2^32-1 Unix seconds")

    if req_time_s > now_s + _MAX_AHEAD_S:
        raise FutureTime(
            f"req_time_s {req_time_s} ({_utc(req_time_s)}) is {req_time_s - now_s} s ahead of "
            f"this server's clock, {now_s} ({_utc(now_s)}); at most {_MAX_AHEAD_S} s are allowed: "
            "give the time of the data in Unix seconds, or 0 for none, and compare the clocks of "
            "the machines. Nothing was applied"
        )


def _utc(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
