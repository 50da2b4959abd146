"""What a replica is told: every change, in messages that fit, and nothing twice without need."""

import time

import numpy as np
import pytest

from megalith.engine.segments.compressor import RowCodec
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.ps.following import follower as following
from megalith.ps.following.follower import Follower
from megalith.ps.following.shared_changes import SharedChanges
from megalith.ps.following.shared_variables import SharedVariables
from megalith.ps.following.versions import (
    Cursor,
    Dropped,
    RowsChanged,
    SnapshotEnds,
    TableBegins,
    VariablesChanged,
    VersionEnds,
)
from megalith.ps.store.store import Store
from megalith.schema import FixedR8, Segment, Sgd, TableConfig, VariableConfig, Zeros
from megalith.wire.routing import buckets_of, share_of_buckets

LARGE = 256 << 20


def table_of(dim=2, name="t", **settings):
    return EmbeddingTable(config_of(dim, name, **settings))


def config_of(dim=2, name="t", compressor=None, **settings):
    more = {} if compressor is None else {"compressor": compressor}
    return TableConfig(name, (Segment(dim, Zeros(), Sgd(1.0), **more),), **settings)


def write(table, ids):
    ids = np.asarray(ids, np.int64)
    table.assign(ids, np.ones((ids.size, table.layout.dim), np.float32))


@pytest.fixture
def store():
    return Store(0)


def follower_of(
    store, name="a", cursor=None, share=(0, 0), max_message_bytes=LARGE, variables=None
):
    return Follower(
        store,
        SharedChanges(),
        variables or SharedVariables(0.0),
        name,
        cursor or Cursor(),
        "log",
        share_of_buckets(*share),
        max_message_bytes,
    )


def version(store, follower, *, is_acknowledged=True, sealed_s=None):
    for table in store.tables():
        table.changes.seal()
    events = list(follower.version(follower.number + 1.0 if sealed_s is None else sealed_s))
    if is_acknowledged:
        follower.acknowledge()
    return events


def kinds(events):
    return [type(event) for event in events]


def ids_of(events):
    found = [event.ids for event in events if isinstance(event, RowsChanged)]
    return sorted(np.concatenate(found).tolist()) if found else []


def test_first_everything_then_changes_only(store):
    table = table_of()
    store.adopt(table=table)
    write(table, [1, 2, 3])
    follower = follower_of(store)
    first = version(store, follower)
    assert kinds(first) == [TableBegins, RowsChanged, SnapshotEnds, VersionEnds]
    write(table, [2])
    table.erase(np.array([3]))
    second = version(store, follower)
    assert kinds(second) == [RowsChanged, Dropped, VersionEnds]
    assert ids_of(second) == [2]
    assert second[1].ids.tolist() == [3]
    assert kinds(version(store, follower)) == [VersionEnds]


@pytest.mark.parametrize("share", [(0, 0), (1, 3)])
@pytest.mark.parametrize("order", ["random", "sorted"])
def test_a_version_says_how_much_it_has(store, share, order):
    ids = np.random.default_rng(3).choice(2**62, 300_000, replace=False)
    if order == "sorted":
        ids = np.sort(ids)
    table = table_of(dim=1)
    write(table, ids)
    store.adopt(table=table)
    store.adopt(variable=Variable(VariableConfig("w", np.zeros(2, np.float32))))
    follower = follower_of(store, share=share)
    num_mine = np.count_nonzero(share_of_buckets(*share)[buckets_of(ids)])
    assert version(store, follower)[-1].num_sent == num_mine + 1

    some = ids[:1000]
    table.erase(some[:300])
    write(table, some[300:])
    num_changed = np.count_nonzero(share_of_buckets(*share)[buckets_of(some)])
    assert version(store, follower)[-1].num_sent == num_changed
    assert version(store, follower)[-1].num_sent == 0


def test_what_others_acknowledge_meanwhile_is_kept_for_one_that_gets_its_first_rows(store):
    """Otherwise every replica but the first would get all rows twice."""
    table = table_of()
    store.adopt(table=table)
    write(table, np.arange(10))
    early = follower_of(store, "early")
    version(store, early)
    late = follower_of(store, "late")
    walk = late.version(1.0)
    assert isinstance(next(walk), TableBegins)
    write(table, [100])
    version(store, early)
    list(walk)
    late.acknowledge()
    write(table, [101])
    assert ids_of(version(store, late)) == [100, 101]
    assert late.snapshots == 1


@pytest.mark.parametrize("is_resumed", [False, True])
def test_another_compressor_sends_all_rows_again(store, is_resumed):
    """Two of them may have rows of equally many bytes, which mean something else."""
    table = table_of(compressor=FixedR8(1.0))
    store.adopt(table=table)
    write(table, np.arange(10))
    follower = follower_of(store)
    ends = version(store, follower)[-1]
    table.reconfigure(config_of(compressor=FixedR8(2.0)))
    if is_resumed:  # the replica sees from the table's configuration that it needs all rows
        follower = follower_of(store, cursor=Cursor("log", ends.sets))
    first = version(store, follower)[0]
    assert first == TableBegins(table.config, is_snapshot=not is_resumed)


def decoded(events):
    """The numbers of all rows, as a replica reads them that was told how the table begins."""
    config = next(event.config for event in events if isinstance(event, TableBegins))
    codec = RowCodec([(segment.compressor, segment.dim) for segment in config.segments])
    return np.concatenate([codec.decode(e.rows) for e in events if isinstance(e, RowsChanged)])


def test_a_compressor_that_changes_just_as_a_snapshot_begins_is_served_right(store, monkeypatch):
    table = table_of(compressor=FixedR8(1.0))
    store.adopt(table=table)
    write(table, [1, 2, 3])
    join = table.changes.join

    def join_late(reader):
        table.reconfigure(config_of(compressor=FixedR8(2.0)))
        return join(reader)

    monkeypatch.setattr(table.changes, "join", join_late)
    follower = follower_of(store)
    np.testing.assert_allclose(decoded(version(store, follower)), np.ones((3, 2)), atol=1 / 64)
    events = version(store, follower)
    assert events[0] == TableBegins(config_of(compressor=FixedR8(2.0)), is_snapshot=True)
    np.testing.assert_allclose(decoded(events), np.ones((3, 2)), atol=1 / 64)


def test_a_table_dropped_and_created_again_is_sent_whole(store):
    store.adopt(table=table_of())
    follower = follower_of(store)
    version(store, follower)
    store.drop_table("t")
    assert not version(store, follower)[-1].sets
    again = table_of(dim=3)
    write(again, [5])
    store.adopt(table=again)
    events = version(store, follower)
    assert kinds(events) == [TableBegins, RowsChanged, SnapshotEnds, VersionEnds]
    assert events[0].config.dim == 3


@pytest.mark.parametrize("is_snapshot", [True, False])
def test_messages_of_wide_rows_stay_small(store, is_snapshot):
    table = table_of(dim=2048)
    store.adopt(table=table)
    follower = follower_of(store)
    if not is_snapshot:
        version(store, follower)
    write(table, np.arange(1500))
    events = version(store, follower)
    sizes = [event.rows.nbytes for event in events if isinstance(event, RowsChanged)]
    assert sum(sizes) == 1500 * 2048 * 4
    assert max(sizes) <= following._MOST_BYTES
    assert ids_of(events) == list(range(1500))


def test_messages_keep_to_the_limit_of_the_server(store):
    table = table_of(dim=16)
    store.adopt(table=table)
    write(table, np.arange(1000))
    events = version(store, follower_of(store, max_message_bytes=4096))
    assert max(e.rows.nbytes + e.ids.nbytes for e in events if isinstance(e, RowsChanged)) < 4096
    assert ids_of(events) == list(range(1000))


def test_variables_come_in_several_messages_and_only_if_they_changed(store):
    for number in range(5):
        value = np.full(1 << 19, number, np.float32)  # 2 MB
        store.adopt(variable=Variable(VariableConfig(f"v{number}", value, Sgd(1.0))))
    follower = follower_of(store)
    events = version(store, follower)
    sent = [event.values for event in events if isinstance(event, VariablesChanged)]
    assert [len(values) for values in sent] == [2, 2, 1]
    assert kinds(version(store, follower)) == [VersionEnds]


def test_a_version_has_the_oldest_time_of_the_data_that_changed_a_table(store):
    for name in ("t", "undated"):
        store.adopt(table=table_of(name=name))
    follower = follower_of(store)
    assert not version(store, follower)[-1].oldest_events_s
    one = np.ones((1, 2), np.float32)
    for time_s in (2000, 1500, 2500):
        store.tables()[0].assign(np.array([7]), one, time_s)
    store.tables()[1].assign(np.array([7]), one)
    ends = version(store, follower)[-1]
    assert sorted(ends.oldest_s) == ["t", "undated"]
    assert ends.oldest_events_s == {"t": 1500}
    assert not version(store, follower)[-1].oldest_events_s


def test_a_version_after_an_overflow_has_the_time_of_what_was_forgotten(store):
    table = table_of(touched_capacity=4)
    store.adopt(table=table)
    follower = follower_of(store)
    version(store, follower)
    before_s = time.monotonic()
    table.assign(np.arange(9), np.ones((9, 2), np.float32), 1500)
    table.changes.seal()
    between_s = time.monotonic()
    table.assign(np.arange(2), np.ones((2, 2), np.float32), 2500)
    ends = version(store, follower)[-1]
    assert follower.snapshots == 2
    assert before_s <= ends.oldest_s["t"] <= between_s
    assert ends.oldest_events_s == {"t": 1500}
    ends = version(store, follower)[-1]
    assert not ends.oldest_s
    assert not ends.oldest_events_s


def values_of(events):
    values = {}
    for event in events:
        if isinstance(event, VariablesChanged):
            values |= {name: value.tolist() for name, value in event.values.items()}
    return values


def add(variable, summand=1.0):
    variable.apply(UpdateKind.ADD, np.full(2, summand, np.float32))


def test_variables_that_change_all_the_time_come_on_their_own_clock(store):
    variable = Variable(VariableConfig("v", np.zeros(2, np.float32), Sgd(1.0)))
    store.adopt(variable=variable)
    follower = follower_of(store, variables=SharedVariables(1.0))
    sent = []
    for quarter in range(9):
        sent.append(values_of(version(store, follower, sealed_s=100 + quarter / 4)))
        add(variable)

    assert [index for index, values in enumerate(sent) if values] == [0, 4, 8]
    assert sent[8] == {"v": [8.0, 8.0]}
    ends = [values_of(version(store, follower, sealed_s=102.25 + n / 4)) for n in range(12)]
    assert [values for values in ends if values] == [{"v": [9.0, 9.0]}]  # and once only
    assert ends[3]  # a second after the last time


def test_a_new_variable_does_not_wait_for_the_clock(store):
    variables = SharedVariables(1000.0)
    follower = follower_of(store, variables=variables)
    version(store, follower)
    store.adopt(variable=Variable(VariableConfig("v", np.ones(2, np.float32), Sgd(1.0))))
    events = version(store, follower)
    assert values_of(events) == {"v": [1.0, 1.0]}
    assert events[-1].variables == ("v",)


def test_replicas_are_sent_one_copy_of_a_variable(store):
    variable = Variable(VariableConfig("v", np.zeros(2, np.float32), Sgd(1.0)))
    store.adopt(variable=variable)
    variables = SharedVariables(0.0)
    followers = [follower_of(store, name, variables=variables) for name in ("a", "b")]
    sent = []
    for follower in followers:
        events = version(store, follower, sealed_s=1.0)
        add(variable)
        sent.append(events[0].values["v"])

    assert sent[0] is sent[1]
    assert values_of(version(store, followers[0], sealed_s=2.0)) == {"v": [2.0, 2.0]}


def test_every_kind_of_change_to_a_variable_has_a_number_of_its_own():
    variable = Variable(VariableConfig("v", np.zeros(2, np.float32), Sgd(1.0)))
    seen = {variable.change}
    for kind in UpdateKind:
        variable.apply(kind, np.ones(2, np.float32))
        seen.add(variable.change)

    variable.load(*variable.dump())
    seen.add(variable.change)
    again = Variable(VariableConfig("v", np.zeros(2, np.float32), Sgd(1.0)))
    seen.add(again.change)
    assert len(seen) == len(UpdateKind) + 3
    assert again.read_numbered().change == again.change


def test_a_share_gets_its_buckets_only(store):
    table = table_of()
    store.adopt(table=table)
    ids = np.arange(3000)
    write(table, ids)
    follower = follower_of(store, share=(1, 3))
    mine = ids[share_of_buckets(1, 3)[buckets_of(ids)]]
    assert ids_of(version(store, follower)) == mine.tolist()
    write(table, ids)
    assert ids_of(version(store, follower)) == mine.tolist()


@pytest.mark.parametrize("number", [-1, 10**15])
def test_a_cursor_that_cannot_be_gets_all_rows(store, number):
    table = table_of()
    store.adopt(table=table)
    write(table, [1])
    follower = follower_of(store, cursor=Cursor("log", {"t": number}))
    assert version(store, follower)[0] == TableBegins(table.config, is_snapshot=True)


def test_a_cursor_of_another_process_gets_all_rows(store):
    table = table_of()
    store.adopt(table=table)
    follower = follower_of(store, cursor=Cursor("other", {"t": table.changes.newest}))
    assert version(store, follower)[0].is_snapshot


def test_a_dismissed_replica_is_not_kept_for(store):
    table = table_of()
    store.adopt(table=table)
    gone = follower_of(store, "gone")
    here = follower_of(store, "here")
    version(store, gone)
    version(store, here)
    write(table, [1, 2])
    version(store, here)
    assert table.changes.size == 2
    gone.dismiss()
    assert table.changes.size == 0
