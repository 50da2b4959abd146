"""What a copy makes of streams that break, lie, or come late."""

import time

import numpy as np
import pytest
import time_machine

from megalith.errors import ChangesForgotten, InternalError, MegalithError
from megalith.protos import replication_pb2 as pb
from megalith.replica.copies.model import ServedModel
from megalith.replica.copies.ps_copy import PsCopy
from megalith.schema import FixedR8, Segment, TableConfig
from megalith.wire import arrays, codec
from megalith.wire.routing import NUM_BUCKETS, buckets_of, share_of_buckets

ALL = share_of_buckets(0, 0)


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


class Ps:
    """Sends to one copy what a ps would."""

    def __init__(self, model, index=0, buckets=ALL):
        self.clock = Clock()
        self.versions = []
        self.copy = PsCopy(model, index, ALL, on_version=self.versions.append, clock=self.clock)
        self._buckets = buckets

    def hello(self, log_id="a"):
        self.copy.speaks()
        self.copy.begin(
            pb.FollowHello(log_id=log_id, buckets=self._buckets.astype(np.uint8).tobytes())
        )

    def table(self, is_snapshot=True, dim=1, **segment):
        config = codec.table_to_proto(TableConfig("t", (Segment(dim, **segment),)))
        begin = pb.TableBegin(config=config, is_snapshot=is_snapshot)
        self.copy.apply(pb.FollowResponse(table=begin))

    def rows(self, ids, value=1.0, times=None):
        ids = np.asarray(ids, np.int64)
        values = np.full((ids.size, 1), value, np.float32)
        times = np.ones(ids.size, "<u4") if times is None else times
        rows = pb.TableRows(
            table="t",
            ids=arrays.encode(ids),
            rows=arrays.encode(values),
            times=arrays.encode(times),
        )
        self.copy.apply(pb.FollowResponse(rows=rows))

    def snapshot_end(self, rows):
        end = pb.SnapshotEnd(table="t", rows=rows)
        self.copy.apply(pb.FollowResponse(snapshot_end=end))

    def version(self, number=1, **fields):
        fields.setdefault("sets", {"t": 7})
        self.copy.apply(pb.FollowResponse(version=pb.VersionEnd(number=number, **fields)))

    def sends_all(self, ids, value=1.0):
        self.hello()
        self.table()
        self.rows(ids, value)
        self.snapshot_end(len(ids))
        self.version()


def read(model, ids):
    return model.lookup("t", np.asarray(ids, np.int64))[:, 0].tolist()


def test_a_broken_stream_of_a_new_process_does_not_take_the_old_numbers_along():
    ps = Ps(ServedModel(1))
    ps.sends_all([1, 2])
    assert dict(ps.copy.cursor.sets) == {"t": 7}
    ps.hello("another process")  # and the stream breaks
    assert ps.copy.cursor.log_id == "another process"
    assert not ps.copy.cursor.sets


def test_a_stream_that_breaks_within_a_version_leaves_the_cursor_where_it_was():
    ps = Ps(ServedModel(1))
    ps.sends_all([1, 2])
    ps.hello()
    ps.table(is_snapshot=False)
    ps.rows([2, 3], 5.0)
    assert dict(ps.copy.cursor.sets) == {"t": 7}
    assert ps.copy.counts.resumed == 1


def test_a_snapshot_that_broke_drops_nothing_and_the_next_one_does():
    model = ServedModel(1)
    ps = Ps(model)
    ps.sends_all([1, 2, 3])
    ps.hello()
    ps.table()
    ps.rows([3])
    ps.hello()
    assert read(model, [1, 2, 3]) == [1, 1, 1]
    ps.table()
    ps.rows([3, 4])
    ps.snapshot_end(2)
    ps.version()
    assert read(model, [1, 2, 3, 4]) == [0, 0, 1, 1]
    assert ps.copy.counts.rows_dropped == 2


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_after_two_replacements_in_a_row_only_the_rows_of_the_last_one_are_left(order):
    """The first of them dies in the middle of its snapshot, with rows that nobody else has."""
    ids = np.random.default_rng(2).choice(2**62, 400_000, replace=False)
    if order == "sorted":
        ids = np.sort(ids)

    model = ServedModel(1)
    Ps(model).sends_all(ids[:300_000], 1.0)
    between = Ps(model)
    between.hello("b")
    between.table()
    between.rows(ids[200_000:], 2.0)
    assert between.copy.is_mixed

    last = Ps(model)
    last.hello("c")
    last.table()
    last.rows(ids[100_000:250_000], 3.0)
    last.snapshot_end(150_000)
    last.version()
    assert not last.copy.is_mixed
    expected = np.zeros(ids.size, np.float32)
    expected[100_000:250_000] = 3.0
    np.testing.assert_array_equal(model.lookup("t", ids)[:, 0], expected)
    assert model.rows == 150_000


def test_a_snapshot_ends_in_the_table_that_it_filled():
    """While rows that are gone are dropped, another ps begins the table anew with other rows."""
    model = ServedModel(2)
    first = Ps(model, 0, np.arange(NUM_BUCKETS) % 2 == 0)
    second = Ps(model, 1, np.arange(NUM_BUCKETS) % 2 == 1)
    for ps in (first, second):
        ps.sends_all([])
    first.hello()
    assert dict(first.copy.cursor.sets) == {"t": 7}
    first.table()
    filled = model.table("t")
    ids_held = filled.ids

    def ids_while_it_is_begun_anew():
        second.table(compressor=FixedR8(1.0))
        return ids_held()

    filled.ids = ids_while_it_is_begun_anew
    first.snapshot_end(0)
    assert model.table("t") is not filled
    assert model.lacks("t", 0)
    with pytest.raises(ChangesForgotten):
        first.version()
    assert not first.copy.cursor.sets, "all rows are asked for"


def test_rows_are_mixed_from_the_begin_of_a_snapshot_until_a_version_is_over():
    ps = Ps(ServedModel(1))
    assert ps.copy.is_mixed, "nothing has come"
    ps.sends_all([1, 2])
    assert not ps.copy.is_mixed
    ps.hello()
    ps.table()
    ps.hello()  # the stream broke
    assert ps.copy.is_mixed
    ps.table()
    ps.snapshot_end(0)
    ps.version()
    assert not ps.copy.is_mixed


def test_rows_of_a_table_that_a_ps_has_no_more_are_gone_though_another_one_has_it():
    """The ps was replaced before the table was saved, and nobody has created it again yet."""
    model = ServedModel(2)
    ids = np.arange(1000)
    is_of_first = buckets_of(ids) % 2 == 0
    of_first = np.arange(NUM_BUCKETS) % 2 == 0
    first = Ps(model, 0, of_first)
    first.sends_all(ids[is_of_first])
    Ps(model, 1, ~of_first).sends_all(ids[~is_of_first])
    assert read(model, ids) == [1.0] * ids.size

    replacement = Ps(model, 1, ~of_first)
    replacement.hello("another process")
    replacement.version(sets={})
    assert read(model, ids) == is_of_first.astype(float).tolist()
    first.version(2)
    assert model.rows == np.count_nonzero(is_of_first)


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_a_snapshot_drops_only_rows_of_the_buckets_of_its_ps(order):
    model = ServedModel(2)
    halves = [np.arange(NUM_BUCKETS) % 2 == index for index in range(2)]
    both = [Ps(model, index, halves[index]) for index in range(2)]
    ids = np.random.default_rng(3).choice(2**62, 300_000, replace=False)
    if order == "sorted":
        ids = np.sort(ids)
    owned = [ids[half[buckets_of(ids)]] for half in halves]
    for ps, mine in zip(both, owned, strict=True):
        ps.sends_all(mine)
    both[1].sends_all(owned[1][: owned[1].size // 2], 2.0)
    kept = owned[1][: owned[1].size // 2]
    assert model.rows == owned[0].size + kept.size
    assert set(read(model, owned[0])) == {1.0}
    assert set(read(model, kept)) == {2.0}
    assert not any(read(model, owned[1][kept.size :]))


def test_rows_that_are_missing_from_a_snapshot_are_an_error_and_nothing_is_dropped():
    model = ServedModel(1)
    ps = Ps(model)
    ps.sends_all([1, 2])
    ps.hello()
    ps.table()
    ps.rows([1])
    with pytest.raises(InternalError, match="sent 1 rows of table t, and says 2"):
        ps.snapshot_end(2)
    assert read(model, [1, 2]) == [1, 1]


def test_a_version_of_which_something_did_not_come_is_an_error_and_is_asked_for_again():
    ps = Ps(ServedModel(1))
    ps.sends_all([1, 2])
    ps.rows([2, 3], 5.0)
    gone = pb.DroppedIds(table="t", ids=arrays.encode(np.array([1], np.int64)))
    ps.copy.apply(pb.FollowResponse(dropped=gone))
    value = pb.NamedArray(name="w", value=codec.array_to_proto(np.ones(1, np.float32)))
    ps.copy.apply(pb.FollowResponse(variables=pb.VariableValues(variables=[value])))
    with pytest.raises(InternalError, match=r"^4 rows, .* of version 2 came from ps-0.* says 5$"):
        ps.version(2, sets={"t": 8}, num_sent=5)
    assert dict(ps.copy.cursor.sets) == {"t": 7}
    assert ps.copy.version == 1

    ps.hello()
    ps.table(is_snapshot=False)
    ps.rows([2, 3], 5.0)
    ps.version(1, sets={"t": 8}, num_sent=2)
    assert dict(ps.copy.cursor.sets) == {"t": 8}
    ps.version(2, sets={"t": 9}, num_sent=0)


def test_a_table_that_another_ps_began_anew_is_asked_for_again():
    """Rows before it went into the old table, and are gone with it."""
    model = ServedModel(2)
    first = Ps(model, 0)
    second = Ps(model, 1)
    first.sends_all([1])
    second.hello()
    second.table()
    second.rows([2])
    first.hello()
    first.table(compressor=FixedR8(1.0))
    with pytest.raises(ChangesForgotten, match="begun anew"):
        second.snapshot_end(1)
    with pytest.raises(ChangesForgotten, match="begun anew"):
        second.rows([3])
    with pytest.raises(ChangesForgotten, match="begun anew"):
        second.version()
    assert not second.copy.cursor.sets
    assert model.lacks("t", 1)


@pytest.mark.parametrize(
    "send",
    [
        lambda ps: ps.rows([1]),
        lambda ps: ps.snapshot_end(0),
        lambda ps: ps.version(),
        lambda ps: ps.copy.apply(pb.FollowResponse()),
        lambda ps: ps.copy.apply(pb.FollowResponse(dropped=pb.DroppedIds(table="t", ids=b"1"))),
        lambda ps: ps.copy.begin(pb.FollowHello(buckets=b"1")),
        lambda ps: [ps.table(), ps.rows([1, 1])],
        lambda ps: [ps.table(dim=2), ps.rows([1])],
        lambda ps: [ps.table(), ps.rows([1], times=np.ones(2, "<u4"))],
    ],
)
def test_what_no_ps_would_send_is_a_typed_error_and_the_cursor_stays(send):
    ps = Ps(ServedModel(1))
    ps.hello()
    with pytest.raises(MegalithError):
        send(ps)
    assert not ps.copy.cursor.sets
    assert ps.copy.caught_up_s is None


def test_a_version_that_was_long_on_its_way_is_as_old_as_it_is():
    """For example because the replica was paused while it lay in the socket."""
    ps = Ps(ServedModel(1))
    ps.hello()
    ps.clock.now_s = 1060.0
    ps.version(sets={}, sealed_us=100_000, sealed_after_us=250_000, ages_us={"t": 300_000})
    assert ps.copy.caught_up_s == 1000.25
    (told,) = ps.versions
    assert told.sealed_us == 59_750_000
    assert told.ages_us["t"] == 300_000 + 59_650_000


@pytest.mark.parametrize("jump_s", [-7200, 7200])
def test_a_jump_of_the_wall_clock_makes_no_version_older(jump_s):
    """With the clock that a replica has."""
    versions = []
    copy = PsCopy(ServedModel(1), 0, ALL, on_version=versions.append)
    began_s = time.monotonic()
    copy.speaks()
    copy.begin(pb.FollowHello(log_id="a", buckets=ALL.astype(np.uint8).tobytes()))
    with time_machine.travel(time.time() + jump_s):
        end = pb.VersionEnd(number=1, sealed_us=100_000, ages_us={"t": 300_000})
        copy.apply(pb.FollowResponse(version=end))
    took_s = time.monotonic() - began_s
    assert began_s <= copy.caught_up_s <= began_s + took_s
    (told,) = versions
    assert 0 <= told.sealed_us <= took_s * 1e6
    assert 300_000 <= told.ages_us["t"] <= 300_000 + took_s * 1e6
