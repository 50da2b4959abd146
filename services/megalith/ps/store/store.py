"""All that one parameter server holds, and the rules under which a request may touch it."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.checkpoint.files.applied import AppliedWrites
from megalith.engine.table.conversion import Converted
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import Variable
from megalith.ps.store import restored_writes
from megalith.ps.store.blobs import DEFAULT_MAX_BLOB_BYTES, Blobs
from megalith.ps.store.contents import Contents, require_distinct
from megalith.ps.store.replay import AppliedPushes
from megalith.ps.store.serving import ServingRules
from megalith.ps.store.write_gate import WriteGate
from megalith.ps.store.writes import (
    Sender,
    TableGradients,
    TableValues,
    VariableUpdate,
    WriteReply,
    Writes,
)
from megalith.runtime.joining.lease import Lease
from megalith.schema import TableConfig, VariableConfig
from megalith.schema.variable_parts import VariableShape
from megalith.wire.routing import Routing


class Store:
    """What requests, the session and checkpoints see of this server's model.

    Each part decides for itself: `ServingRules` whether a request is served, `Contents` what there
    is, `Writes` what changes it, `Blobs` what programs have stored. `_lock` guards the count of
    pulls and which tables were dropped.
    """

    def __init__(
        self,
        index: int,
        clock: Callable[[], float] = time.time,
        applied: AppliedPushes[WriteReply] | None = None,
        lease: Lease | None = None,
        max_blob_bytes: int = DEFAULT_MAX_BLOB_BYTES,
    ) -> None:
        """See `Writes` for `clock` and `applied`, `ServingRules` for `lease`.

        `max_blob_bytes` bounds the bytes of all blobs.
        """
        self._applied = applied or AppliedPushes[WriteReply]()
        self._rules = ServingRules(lease)

        self._contents = Contents(index)
        self._gate = WriteGate()
        self._blobs = Blobs(max_blob_bytes)
        self._writes = Writes(self._contents, self._applied, self._gate, clock)
        self._saved_writes: AppliedWrites | None = None  # until it is known of which run it is

        self._clock = clock
        self._lock = threading.Lock()
        self._dropped_tables: dict[str, float] = {}

        self.pulls = 0

    # --- which requests ---

    @property
    def index(self) -> int:
        """Of this ps in the map."""
        return self._contents.index

    def take_index(self, index: int) -> None:
        """From now on this is the ps of that index in the map; before the first map only."""
        self._contents.take_index(index)

    def route(self, routing: Routing | None, is_initialized: bool) -> None:
        """Obey this map. Until its epoch is initialized, a missing table is a matter of time.

        WrongRun if it is of another run than the first one: what is here belongs to that.
        """
        if routing is not None:
            self._rules.join_run(routing.run_id)
            self._take_saved_writes(routing.run_id)

        self._contents.route(routing, is_initialized)

    def check_run(self, run_id: str) -> None:
        """WrongRun for a request of another run than that of the first map, or of none."""
        self._rules.check_run(run_id, self._contents.index)

    def serving(self, run_id: str, is_controller_away: bool) -> AbstractContextManager[None]:
        """Inside, a data request is served; see `ServingRules.serving`."""
        return self._rules.serving(run_id, self._contents.index, is_controller_away)

    def check_seat(self, is_controller_away: bool) -> None:
        """NotReady if another process may have newer rows; see `ServingRules.check_seat`."""
        self._rules.check_seat(self._contents.index, is_controller_away)

    @property
    def run_id(self) -> str:
        """Of the maps; empty = there was none yet."""
        return self._rules.run_id

    @property
    def epoch(self) -> int:
        """Of the newest map; 0 = none yet."""
        return self._contents.epoch

    def buckets(self) -> NDArray[np.bool_]:
        """By bucket, whether this server owns it; without a map it may be any."""
        return self._contents.buckets()

    def mapped_buckets(self) -> NDArray[np.bool_]:
        """By bucket, whether the map gives it to this server; NotReady while there is no map."""
        return self._contents.mapped_buckets()

    # --- creation ---

    def create_tables(
        self, epoch: int, configs: Sequence[TableConfig], allow_new_layout: bool = False
    ) -> dict[str, Converted]:
        """See `Contents.create_tables`. Writes wait while a table takes a new layout."""
        with self._gate.closed() if allow_new_layout else nullcontext():
            return self._contents.create_tables(epoch, configs, allow_new_layout)

    def create_variables(self, epoch: int, configs: Sequence[VariableConfig]) -> None:
        self._contents.create_variables(epoch, configs)

    def describe_variables(self, epoch: int, names: Sequence[str]) -> list[VariableShape]:
        return self._contents.describe_variables(epoch, names)

    def adopt(self, table: EmbeddingTable | None = None, variable: Variable | None = None) -> None:
        """Take a restored table or variable, before there is a map."""
        self._contents.adopt(table, variable)

    # --- increments ---

    def cut(self) -> AbstractContextManager[None]:
        """Inside, nobody writes: rows, variables and what is remembered belong together."""
        return self._gate.closed()

    def applied_writes(self) -> AppliedWrites:
        """The writes that it remembers to have applied."""
        return restored_writes.dump(self._applied, self.run_id)

    def adopt_writes(self, applied: AppliedWrites) -> None:
        """Remember writes that are in what was restored, if this ps joins the run they are of."""
        self._saved_writes = applied

    def _take_saved_writes(self, run_id: str) -> None:
        saved = self._saved_writes
        self._saved_writes = None
        if saved is not None and saved.run_id == run_id:
            restored_writes.load(self._applied, saved)

    # --- data ---

    def pull(
        self, epoch: int, tables: Sequence[tuple[str, NDArray[np.int64]]], variables: Sequence[str]
    ) -> tuple[list[NDArray[np.float32]], list[NDArray[Any]]]:
        """Embeddings by table and values of variables, both in the order asked for."""
        names = [name for name, _ in tables]
        require_distinct("table", names)
        found = self._contents.find(epoch, names, variables)
        with self._lock:
            self.pulls += 1

        for name, ids in tables:
            found.buckets.check_owned(name, ids)

        rows = []
        for table, (_, ids) in zip(found.tables, tables, strict=True):
            rows.append(table.lookup(ids))

        return rows, [variable.read() for variable in found.variables]

    def pulled_size(
        self, tables: Sequence[tuple[str, NDArray[np.int64]]], variables: Sequence[str]
    ) -> tuple[int, int]:
        """Floats of rows and bytes of variables that `pull` would return.

        What is not here counts as nothing.
        """
        num_floats = 0
        for name, ids in tables:
            num_floats += self._contents.width_of(name) * ids.size

        nbytes = 0
        for variable in self._contents.present_variables(variables):
            nbytes += variable.config.initial.nbytes

        return num_floats, nbytes

    def push(
        self,
        epoch: int,
        sender: Sender,
        gradients: Sequence[TableGradients],
        updates: Sequence[VariableUpdate],
        req_time_s: int = 0,
        step: int = 0,
    ) -> list[NDArray[Any]]:
        """See `Writes.push`."""
        return self._writes.push(epoch, sender, gradients, updates, req_time_s, step)

    def assign(
        self,
        epoch: int,
        sender: Sender,
        parts: Sequence[TableValues],
        *,
        is_added: bool,
        req_time_s: int = 0,
    ) -> None:
        """See `Writes.assign`."""
        self._writes.assign(epoch, sender, parts, is_added=is_added, req_time_s=req_time_s)

    def reinitialize(
        self, epoch: int, sender: Sender, name: str, ids: NDArray[np.int64]
    ) -> NDArray[np.int8]:
        """See `Writes.reinitialize`."""
        return self._writes.reinitialize(epoch, sender, name, ids)

    def expire(self) -> dict[str, int]:
        """Drop what is expired in every table; rows dropped, by table."""
        with self._gate.passing():
            return {table.config.name: table.expire() for table in self.tables()}

    def drop_table(self, name: str) -> int | None:
        """Drop a table that no program of this run has created; its rows, None if it is not here.

        TableConflict if one has.
        """
        dropped = self._contents.drop_table(name)
        if dropped is None:
            return None

        with self._lock:
            self._dropped_tables[name] = self._clock()

        return len(dropped)

    @property
    def dropped_tables(self) -> dict[str, float]:
        """Tables that were dropped on purpose, and when, by the wall clock."""
        with self._lock:
            return dict(self._dropped_tables)

    def is_claimed(self, name: str) -> bool:
        """Whether a program of this run has created that table, or created it again."""
        return self._contents.is_claimed(name)

    # --- blobs ---

    def put_blob(self, epoch: int, name: str, data: bytes) -> None:
        """Store bytes under a name. LimitExceeded, and nothing changes, if there is no room."""
        self._contents.routed_at(epoch).check_owned_blob(name)
        with self._gate.passing():
            self._blobs.put(name, data)

    def get_blob(self, epoch: int, name: str) -> bytes:
        """UnknownBlob if this ps has none of that name."""
        self._contents.routed_at(epoch).check_owned_blob(name)
        return self._blobs.get(name)

    def drop_blob(self, epoch: int, name: str) -> int | None:
        """Forget a blob; how many bytes it had, None if it is not here."""
        self._contents.routed_at(epoch).check_owned_blob(name)
        with self._gate.passing():
            return self._blobs.drop(name)

    def blob_sizes(self, epoch: int) -> dict[str, int]:
        """Bytes by name."""
        self._contents.routed_at(epoch)
        return {name: len(data) for name, data in self._blobs.all().items()}

    def blobs(self) -> dict[str, bytes]:
        """By name, as of now."""
        return self._blobs.all()

    def adopt_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Take restored blobs, all of them, before there is a map."""
        self._blobs.adopt(blobs)

    @property
    def blob_bytes(self) -> int:
        """The part of `nbytes` that programs have stored in blobs."""
        return self._blobs.nbytes

    # --- what is there ---

    def tables(self) -> list[EmbeddingTable]:
        """By name."""
        return self._contents.tables()

    def variables(self) -> list[Variable]:
        """By name, parts in order."""
        return self._contents.variables()

    @property
    def pushes(self) -> int:
        """Writes that were applied, those of blobs too."""
        return self._writes.count + self._blobs.changes

    @property
    def rows(self) -> int:
        return sum(len(table) for table in self.tables())

    @property
    def nonfinite_updates(self) -> int:
        """Updates of variables that were left out because their result was not finite."""
        return sum(variable.nonfinite for variable in self.variables())

    @property
    def nbytes(self) -> int:
        """Memory of rows, index, variables, blobs and of what is remembered of writes."""
        total = self._applied.nbytes + self._blobs.nbytes

        for table in self.tables():
            total += table.nbytes

        for variable in self.variables():
            total += variable.nbytes

        return total

    @property
    def push_memory_bytes(self) -> int:
        """The part of `nbytes` by which repeated writes are recognized."""
        return self._applied.nbytes
