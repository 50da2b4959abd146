"""The copy of one ps inside a replica: applying what the ps sends, in order."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from megalith.engine.serving_table import ServingTable
from megalith.errors import ChangesForgotten, InternalError, LimitExceeded
from megalith.kernels.dtypes import I64, U8, Bools
from megalith.protos import replication_pb2 as pb
from megalith.replica.copies.model import ServedModel
from megalith.wire import arrays, codec
from megalith.wire.routing import NUM_BUCKETS, buckets_of

_TIME = np.dtype("<u4")
_BYTE = np.dtype("u1")
_NOTHING: I64 = np.empty(0, np.int64)


@dataclass(slots=True)
class CopyCounts:
    """Of one index of a ps, since the replica started."""

    resumed: int = 0
    resumed_from_save: int = 0
    snapshots: int = 0
    rows_applied: int = 0
    rows_dropped: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class _Snapshot:
    """The ids of a snapshot so far."""

    parts: list[I64] = field(default_factory=list)

    @property
    def ids(self) -> I64:
        """All of them, in rising order."""
        if not self.parts:
            return np.empty(0, np.int64)

        ids = np.concatenate(self.parts)
        ids.sort()
        return ids


class PsCopy:
    """What a replica has of one ps. One thread applies; any thread may read the figures.

    The cursor names the last version that was applied as a whole. It goes with the model that was
    filled: whoever starts with an empty model starts with a new copy.
    """

    def __init__(
        self,
        model: ServedModel,
        index: int,
        share: Bools,
        *,
        on_version: Callable[[pb.VersionEnd], None],
        counts: CopyCounts | None = None,
        save_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_version` hears of every version that was applied, and how old its changes are now.

        `counts` are those of an earlier copy. With a `save_id` the model has the rows of that save.
        """
        self.model = model
        self.index = index
        self._share = share
        self._on_version = on_version
        self._clock = clock
        self._buckets = share
        self._log_id = ""
        self._save_id = save_id  # until the first version has come on top of it
        self._sets: Mapping[str, int] = {}
        self._tables: dict[str, ServingTable] = {}  # that the stream has begun
        self._snapshots: dict[str, _Snapshot] = {}
        self._is_in_snapshot = False  # until a version is over, also if streams break meanwhile
        self._absent: set[str] = set()  # tables that the ps has not, whose rows were dropped
        self._num_got = 0  # rows, dropped ids and values of variables since the last version
        self._said_s = 0.0  # when the ps was told something for the last time
        self.counts = counts or CopyCounts()
        self.version = 0
        self.newest_data_s = 0
        self.caught_up_s: float | None = None  # when it had everything for the last time

    @property
    def is_mixed(self) -> bool:
        """Whether old rows may be beside those of a snapshot, which may have broken off."""
        return self.caught_up_s is None or self._is_in_snapshot

    @property
    def cursor(self) -> pb.ReplicaCursor:
        """Where the next stream goes on.

        Tables of which rows are lacking are not in it, so that all their rows are sent.
        """
        sets = {}
        for name, number in self._sets.items():
            if not self.model.lacks(name, self.index):
                sets[name] = number

        return pb.ReplicaCursor(log_id=self._log_id, sets=sets, save_id=self._save_id)

    def begin(self, hello: pb.FollowHello) -> None:
        """A new stream. A ps of another log sends all rows."""
        owned = arrays.decode(hello.buckets, _BYTE, [NUM_BUCKETS], "buckets of a ps")
        self._buckets = (owned != 0) & self._share
        self._tables = {}
        self._snapshots = {}
        self._num_got = 0
        self.version = 0
        if hello.log_id != self._log_id:
            self._sets = {}  # they are numbers of another log
        elif self._sets:
            self.counts.resumed += 1

        if not hello.goes_on_from_save:
            self._save_id = ""
        elif self._save_id:
            self.counts.resumed_from_save += 1

        self._log_id = hello.log_id

    def speaks(self) -> None:
        """The ps is told something now: to begin, or that a version was applied."""
        self._said_s = self._clock()

    def apply(self, message: pb.FollowResponse) -> bool:
        """Take one message; True after one that ends a version."""
        match message.WhichOneof("kind"):
            case "table":
                self._begin_table(message.table)
            case "rows":
                self._set_rows(message.rows)
            case "dropped":
                self._drop(message.dropped)
            case "snapshot_end":
                self._end_snapshot(message.snapshot_end)
            case "variables":
                self._set_variables(message.variables)
            case "version":
                self._end_version(message.version)
                return True
            case other:
                raise InternalError(f"ps-{self.index} sent {other}, which is unknown here")

        return False

    def _begin_table(self, begin: pb.TableBegin) -> None:
        config = codec.table_from_proto(begin.config)
        self._tables[config.name] = self.model.begin_table(config, self.index)
        if begin.is_snapshot:
            self.counts.snapshots += 1
            self._snapshots[config.name] = _Snapshot()
            self._is_in_snapshot = True
        elif self.model.lacks(config.name, self.index):
            self._save_id = ""  # all rows are sent next time
            raise InternalError(
                f"ps-{self.index} goes on with table {config.name}, of which rows are lacking"
            )

    def _table(self, name: str) -> ServingTable:
        """The table that this stream began; an error if another ps has begun it anew since."""
        table = self.model.table(name)
        if self._tables.get(name) is not table:
            raise ChangesForgotten(
                f"table {name} was begun anew with other rows: ps-{self.index} is asked for all"
            )

        return table

    def _set_rows(self, rows: pb.TableRows) -> None:
        name = rows.table
        table = self._table(name)
        ids = arrays.decode_ids(rows.ids, f"ids of table {name}")
        times = arrays.decode(rows.times, _TIME, [ids.size], f"times of table {name}")
        shape = [ids.size, table.stored_bytes]
        compressed: U8 = arrays.decode(rows.rows, _BYTE, shape, f"rows of table {name}")

        refused = table.upsert_compressed(ids, compressed, times.astype(np.int64))
        if refused:
            raise LimitExceeded(f"table {name}: there is no room here for {refused} rows")

        self._num_got += ids.size
        self.counts.rows_applied += ids.size
        for data in (rows.ids, rows.rows, rows.times):
            self.counts.bytes_received += len(data)

        snapshot = self._snapshots.get(name)
        if snapshot is not None:
            snapshot.parts.append(ids)

    def _drop(self, dropped: pb.DroppedIds) -> None:
        ids = arrays.decode_ids(dropped.ids, f"dropped ids of table {dropped.table}")
        self._num_got += ids.size
        self.counts.bytes_received += len(dropped.ids)

        table = self._table(dropped.table)
        self.counts.rows_dropped += table.erase(ids)

    def _end_snapshot(self, end: pb.SnapshotEnd) -> None:
        """Drop the rows of this ps's buckets that were not in the snapshot."""
        snapshot = self._snapshots.pop(end.table, None)
        if snapshot is None:
            raise InternalError(f"ps-{self.index} ends a snapshot of {end.table} that never began")

        held = snapshot.ids
        if held.size != end.rows:
            raise InternalError(
                f"ps-{self.index} sent {held.size} rows of table {end.table}, and says {end.rows}"
            )

        table = self._table(end.table)
        self._drop_all_but(held, table)
        self.model.end_snapshot(table, self.index)

    def _drop_all_but(self, held: I64, table: ServingTable) -> None:
        """Drop rows of this ps's buckets; those in `held`, in rising order, stay."""
        for ids in table.ids():
            buckets = buckets_of(ids)
            of_this_ps = ids[self._buckets[buckets]]
            is_held = _is_among(of_this_ps, held)
            gone = of_this_ps[~is_held]
            self.counts.rows_dropped += table.erase(gone)

    def _drop_absent(self, present: Collection[str]) -> None:
        """Drop the rows of this ps's buckets in tables that it does not have, once.

        Others may have these tables. A ps that was replaced before the first save has none.
        """
        absent = set()
        for served in self.model.tables:
            name = served.table.config.name
            if name in present:
                continue

            absent.add(name)
            if name not in self._absent:
                self._drop_all_but(_NOTHING, served.table)

        self._absent = absent

    def _set_variables(self, message: pb.VariableValues) -> None:
        values = {}
        for named in message.variables:
            values[named.name] = codec.array_from_proto(named.value, f"variable {named.name}")

        self._num_got += len(message.variables)
        self.model.set_variables(values, self.index)

    def _end_version(self, version: pb.VersionEnd) -> None:
        if version.HasField("num_sent") and version.num_sent != self._num_got:
            raise InternalError(
                f"{self._num_got} rows, dropped ids and variables of version {version.number} came "
                f"from ps-{self.index}, and it says {version.num_sent}"
            )

        self._num_got = 0
        for name in version.sets:
            self._table(name)

        self._drop_absent(version.sets.keys())
        self._sets = dict(version.sets)
        self._save_id = ""
        self._is_in_snapshot = False
        self.model.keep_only(self.index, list(version.sets), version.variables)
        self.version = version.number
        self.newest_data_s = version.newest_data_s
        self.caught_up_s = self._said_s + version.sealed_after_us / 1e6
        self._on_version(self._as_of_now(version, self.caught_up_s))

    def _as_of_now(self, version: pb.VersionEnd, sealed_s: float) -> pb.VersionEnd:
        """Its ages were right when it was sent: they get the time that it was on its way."""
        aged = pb.VersionEnd()
        aged.CopyFrom(version)
        aged.sealed_us = int((self._clock() - sealed_s) * 1e6)
        under_way_us = max(0, aged.sealed_us - version.sealed_us)
        for table in version.ages_us:
            aged.ages_us[table] += under_way_us

        return aged


def _is_among(ids: I64, rising: I64) -> Bools:
    """Whether each id is one of `rising`, which may be far more: they are not sorted again."""
    if not rising.size:
        return np.zeros(ids.size, np.bool_)

    places = np.searchsorted(rising, ids)
    is_beyond = places == rising.size
    places[is_beyond] = 0
    is_found: Bools = rising[places] == ids
    return is_found
