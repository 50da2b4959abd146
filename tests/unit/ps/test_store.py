from types import SimpleNamespace

import numpy as np
import pytest

from megalith.engine.variable.variable import UpdateKind
from megalith.errors import (
    DeadlinePassed,
    DuplicateIds,
    FutureTime,
    InvalidRequest,
    InvalidSetting,
    NonFiniteValue,
    NotReady,
    OutcomeLost,
    ShardNotOwned,
    StaleEpoch,
    TableConflict,
    UnknownTable,
    UnknownVariable,
)
from megalith.ps.store.replay import AppliedPushes
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients, TableValues, VariableUpdate
from megalith.runtime.joining.lease import LEASE_S, SILENCE_S, Lease
from megalith.schema import (
    AdmissionConfig,
    OneBit,
    Ones,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
    Zeros,
)
from megalith.wire import routing
from megalith.wire.routing import Routing

TABLE = TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),))
ALL = np.arange(100)


def routed(epoch=3, num_ps=1, is_initialized=True):
    store = Store(0)
    store.route(Routing(epoch, ("a",) * num_ps, routing.even_owners(num_ps)), is_initialized)
    return store


@pytest.fixture
def store():
    store = routed()
    store.create_tables(3, [TABLE])
    store.create_variables(3, [VariableConfig("v", np.zeros(2, np.float32), Sgd(1.0))])
    return store


def ones(ids):
    return np.ones((len(ids), 2), np.float32)


def push(store, sequence=1, epoch=3, ids=(1, 2), **changes):
    part = {"table": "t", "ids": np.array(ids, np.int64), "gradients": ones(ids), **changes}
    return store.push(epoch, Sender("client", sequence), [TableGradients(**part)], [])


def read(store, *ids):
    return store.pull(store.epoch, [("t", np.array(ids, np.int64))], [])[0][0].tolist()


def test_a_repeated_push_is_applied_once(store):
    push(store)
    push(store)
    assert read(store, 1) == [[-1, -1]]
    assert store.pushes == 1


def test_the_step_of_a_push_reaches_the_table(store):
    store.create_tables(
        3, [TableConfig("o", (Segment(1, Ones(), Sgd(0.0), OneBit(step_size=1000)),))]
    )
    part = TableGradients("o", np.array([1]), np.ones((1, 1), np.float32))
    store.push(3, Sender("client", 1), [part], [], step=1000)
    (rows,), _ = store.pull(3, [("o", np.array([1]))], [])
    np.testing.assert_allclose(rows, [[0.1 * np.tanh(np.sqrt(6))]], rtol=1e-6)


def test_a_time_a_day_ahead_of_the_wall_clock_is_refused_whole_and_repeats_stay_answered():
    now_s = 1_000_000
    store = Store(0, clock=lambda: now_s)
    store.route(Routing(3, ("a",), routing.even_owners(1)), True)
    store.create_tables(3, [TABLE, TableConfig("u", (Segment(2, Zeros(), Sgd(1.0)),))])

    def push_at(time_s, sequence):
        keys = np.array([1])
        parts = [TableGradients(name, keys, np.ones((1, 2), np.float32)) for name in "tu"]
        store.push(3, Sender("client", sequence), parts, [], time_s)

    push_at(now_s + 86400, 1)
    with pytest.raises(
        FutureTime, match=r"req_time_s 1086401 .* 86401 s ahead .* 1000000 .* at most 86400 s"
    ):
        push_at(now_s + 86401, 2)
    values = [TableValues("t", np.array([1]), np.ones((1, 2), np.float32))]
    with pytest.raises(FutureTime):
        store.assign(3, Sender("client", 3), values, is_added=False, req_time_s=2**32 - 1)
    assert [table.max_update_s for table in store.tables()] == [1_086_400, 1_086_400]
    assert read(store, 1) == [[-1, -1]]
    now_s = 0
    push_at(1_086_400, 1)  # it was applied: a clock that is set back does not change the answer
    assert read(store, 1) == [[-1, -1]]


def test_a_stale_epoch_is_refused_and_changes_nothing(store):
    with pytest.raises(StaleEpoch, match="epoch 2, ps-0 is at 3"):
        push(store, epoch=2)
    assert read(store, 1) == [[0, 0]]


def test_a_newer_epoch_than_the_server_s_is_asked_to_wait(store):
    with pytest.raises(NotReady, match="at epoch 3, the request at 4"):
        push(store, epoch=4)


def test_without_a_map_nothing_is_served():
    with pytest.raises(NotReady):
        Store(0).pull(1, [], [])


def test_a_push_that_was_applied_is_answered_at_any_epoch(store):
    push(store)
    store.route(Routing(4, ("a",), routing.even_owners(1)), True)
    push(store, epoch=3)
    assert read(store, 1) == [[-1, -1]]


def test_ids_of_another_server_are_refused_by_name():
    store = routed(num_ps=2)
    store.create_tables(3, [TABLE])
    owners = Routing(3, ("a", "a"), routing.even_owners(2)).owner_of(ALL)
    mine, foreign = ALL[owners == 0], ALL[owners == 1]
    push(store, ids=mine)
    with pytest.raises(ShardNotOwned, match=f"the first is {foreign[0]} of shard 1"):
        push(store, sequence=2, ids=np.concatenate([mine[:1], foreign[:1]]))
    with pytest.raises(ShardNotOwned):
        store.pull(3, [("t", foreign)], [])
    assert read(store, mine[0]) == [[-1, -1]]


def test_an_error_in_the_last_part_of_a_push_applies_none_of_it(store):
    good = TableGradients("t", np.array([1]), ones([1]))
    bad = VariableUpdate("v", UpdateKind.ADD, np.array([1, np.nan], np.float32))
    with pytest.raises(NonFiniteValue):
        store.push(3, Sender("client", 1), [good], [bad])
    assert read(store, 1) == [[0, 0]]
    assert len(store.tables()[0]) == 0


def test_unknown_names_are_not_found_once_the_chief_is_done(store):
    with pytest.raises(UnknownTable, match=r"no table 'x'; it has \['t'\]"):
        push(store, table="x")
    with pytest.raises(UnknownVariable, match="no variable 'x'"):
        store.pull(3, [], ["x"])


def test_unknown_names_are_a_matter_of_time_before_the_chief_is_done():
    with pytest.raises(NotReady, match="the chief is still creating"):
        routed(is_initialized=False).pull(3, [("t", ALL)], [])


def test_a_table_twice_in_a_push_is_refused(store):
    part = TableGradients("t", np.array([1]), ones([1]))
    with pytest.raises(DuplicateIds, match="table t occurs twice"):
        store.push(3, Sender("client", 1), [part, part], [])


def test_a_name_twice_in_any_request_is_refused_and_creates_nothing(store):
    other = TableConfig("new", (Segment(3, Zeros(), Sgd(1.0)),))
    with pytest.raises(DuplicateIds):
        store.create_tables(3, [other, TableConfig("new", TABLE.segments)])
    with pytest.raises(DuplicateIds):
        store.create_variables(3, [VariableConfig("n", np.zeros(1, np.float32))] * 2)
    with pytest.raises(DuplicateIds):
        store.pull(3, [("t", ALL), ("t", ALL)], [])
    assert [table.config.name for table in store.tables()] == ["t"]


@pytest.mark.parametrize(
    ("client", "sequence", "time"), [("", 1, 0), ("c", 0, 0), ("c", 1, -1), ("c", 1, 2**32)]
)
def test_a_push_without_identity_or_with_an_impossible_time_is_refused(
    store, client, sequence, time
):
    with pytest.raises(InvalidRequest):
        store.push(3, Sender(client, sequence), [], [], time)


def test_creating_again_keeps_rows_and_a_conflict_creates_nothing(store):
    push(store)
    store.create_tables(3, [TABLE])
    assert read(store, 1) == [[-1, -1]]
    other = TableConfig("t", (Segment(3, Zeros(), Sgd(1.0)),))
    with pytest.raises(TableConflict):
        store.create_tables(3, [TableConfig("new", TABLE.segments), other])
    assert [table.config.name for table in store.tables()] == ["t"]


def test_settings_that_cannot_be_change_no_table_of_the_request(store):
    store.create_tables(3, [TableConfig("u", TABLE.segments)])
    changed = TableConfig("t", TABLE.segments, expire_days=7)
    impossible = TableConfig(
        "u", TABLE.segments, admission=AdmissionConfig(default_threshold=70_000)
    )
    with pytest.raises(InvalidSetting, match="70000"):
        store.create_tables(3, [changed, impossible, TableConfig("new", TABLE.segments)])
    assert [table.config.name for table in store.tables()] == ["t", "u"]
    assert [table.config.expire_days for table in store.tables()] == [36500, 36500]


def test_creating_a_variable_again_keeps_its_value(store):
    store.push(
        3,
        Sender("client", 1),
        [],
        [VariableUpdate("v", UpdateKind.ASSIGN, np.array([5, 6], np.float32))],
    )
    store.create_variables(3, [VariableConfig("v", np.zeros(2, np.float32), Sgd(1.0))])
    assert store.pull(3, [], ["v"])[1][0].tolist() == [5, 6]


def test_added_values_come_back_in_request_order(store):
    store.create_variables(3, [VariableConfig("n", np.zeros((), np.int64))])
    updates = [
        VariableUpdate("v", UpdateKind.GRADIENT, np.ones(2, np.float32)),
        VariableUpdate("n", UpdateKind.ADD, np.array(4, np.int64)),
    ]
    assert [value.tolist() for value in store.push(3, Sender("client", 1), [], updates)] == [4]


def test_a_repeated_push_whose_answer_did_not_fit_is_answered_with_the_values_of_now():
    store = Store(0, applied=AppliedPushes(max_bytes=1 << 20))
    store.route(Routing(3, ("a",), routing.even_owners(1)), True)
    store.create_variables(3, [VariableConfig("hist", np.zeros(1 << 18, np.int64))])  # 2 MiB
    updates = [VariableUpdate("hist", UpdateKind.ADD, np.ones(1 << 18, np.int64))]
    for client in ("a", "b"):
        store.push(3, Sender(client, 1), [], updates)
    (values,) = store.push(3, Sender("a", 1, is_repeated=True), [], updates)
    assert values[0] == 2
    assert store.pushes == 2


def test_a_push_that_fails_after_its_first_write_is_not_applied_again(store, monkeypatch):
    for name in ("x", "y"):
        store.create_tables(3, [TableConfig(name, TABLE.segments)])
    y = next(table for table in store.tables() if table.config.name == "y")
    parts = [TableGradients(name, np.array([1]), -ones([1])) for name in ("x", "y")]
    with monkeypatch.context() as patched:
        patched.setattr(type(y), "apply_checked", failing_for(y))
        with pytest.raises(OutcomeLost, match="MemoryError"):
            store.push(3, Sender("client", 1), parts, [])
    for _ in range(2):
        with pytest.raises(OutcomeLost, match="it is not applied again"):
            store.push(3, Sender("client", 1, is_repeated=True), parts, [])
    values = [store.pull(3, [(name, np.array([1]))], [])[0][0][0, 0] for name in ("x", "y")]
    assert values == [1, 0]
    store.push(3, Sender("client", 2), parts, [])


def failing_for(broken):
    apply = type(broken).apply_checked

    def failing(table, *parts, **settings):
        if table is broken:
            raise MemoryError("no memory for what changed")
        return apply(table, *parts, **settings)

    return failing


def test_what_is_remembered_of_pushes_counts_as_memory(store):
    store.create_variables(3, [VariableConfig("big", np.zeros(250_000, np.float32))])
    before = store.nbytes
    store.push(
        3,
        Sender("client", 1),
        [],
        [VariableUpdate("big", UpdateKind.ADD, np.ones(250_000, np.float32))],
    )
    assert store.nbytes - before == store.push_memory_bytes > 1_000_000


@pytest.fixture
def leased():
    """A store in run "r" whose lease began at 100.0, and its clock."""
    clock = SimpleNamespace(now=100.0)
    lease = Lease(lambda: clock.now)
    lease.renew(100.0)
    clock.beat = lease.beat
    store = Store(0, lease=lease)
    store.route(Routing(3, ("a",), routing.even_owners(1), "r"), True)
    store.create_tables(3, [TABLE])
    return store, clock


def run_until(clock, end):
    """The process runs until then, and notes it."""
    while clock.now < end:
        clock.beat()
        clock.now += 0.25
    clock.beat()


def test_without_a_lease_nothing_is_done_unless_the_client_knows_of_no_controller_either(leased):
    store, clock = leased
    with store.serving("r", False):
        push(store)
    run_until(clock, 100.0 + LEASE_S)
    with (
        pytest.raises(NotReady, match="another process may have its seat"),
        store.serving("r", False),
    ):
        push(store, 2)
    assert store.pushes == 1
    with store.serving("r", True):
        push(store, 2)
    assert store.pushes == 2


def test_a_ps_that_did_not_run_believes_no_client_that_knows_of_no_controller(leased):
    store, clock = leased
    run_until(clock, 101.0)
    clock.now = 120.0  # it was stopped
    for _ in range(2):
        with pytest.raises(NotReady, match="another process"), store.serving("r", True):
            push(store)
        clock.beat()  # it runs again, and has not asked the controller yet
    assert store.pushes == 0
    run_until(clock, 120.0 + SILENCE_S)
    with store.serving("r", True):
        push(store)
    assert store.pushes == 1


def test_a_ps_that_is_stopped_within_a_request_without_a_controller_does_not_acknowledge_it(leased):
    store, clock = leased
    run_until(clock, 110.0)

    def push_slowly():
        with store.serving("r", True):
            push(store)
            clock.now = 120.0

    with pytest.raises(DeadlinePassed, match="while it served"):
        push_slowly()


def test_with_a_lease_a_client_that_knows_of_no_controller_is_refused(leased):
    store, _ = leased
    with pytest.raises(NotReady, match="hears its controller"), store.serving("r", True):
        push(store)
    assert store.pushes == 0


def test_a_write_during_which_the_lease_ends_is_not_acknowledged_and_its_outcome_is_open(leased):
    store, clock = leased

    def push_slowly():
        with store.serving("r", False):
            push(store)
            clock.now = 100.0 + LEASE_S

    with pytest.raises(DeadlinePassed, match="while it served"):
        push_slowly()


def test_a_kept_answer_of_reinitialize_takes_a_byte_for_each_id(leased):
    store, _ = leased
    before = store.push_memory_bytes
    ids = np.arange(100_000)
    status = store.reinitialize(3, Sender("c", 1), TABLE.name, ids)
    assert (status.dtype, status.sum()) == (np.int8, 0)
    assert store.push_memory_bytes - before < 150_000
    assert store.reinitialize(3, Sender("c", 1), TABLE.name, ids) is status
