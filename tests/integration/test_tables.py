"""Rules of a table, set through the SDK and obeyed by real servers."""

import json
import time
import urllib.request

import numpy as np
import pytest
from click.testing import CliRunner

from megalith.cli.app import app
from megalith.client import (
    Adam,
    AdmissionConfig,
    Dc,
    FilterKind,
    Ftrl,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    TableStats,
    Zeros,
)
from megalith.errors import FutureTime, NonFiniteValue, TableConflict, UnknownTable
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import arrays
from megalith.wire.channel import open_channel
from support.servers import Servers
from support.waiting import wait_until

DAY_S = 86400


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        yield servers


@pytest.fixture
def stub(cluster):
    with open_channel(cluster.controller.routing().addresses[0]) as channel:
        yield parameter_server_pb2_grpc.ParameterServerStub(channel)


def run_id(cluster):
    return cluster.controller.routing().run_id


def status(stub, name):
    tables = stub.GetPsStatus(pb.GetPsStatusRequest(), timeout=30).tables
    return next(table for table in tables if table.config.name == name)


def ones(count, dim=1):
    return np.ones((count, dim), np.float32)


def test_slices_learn_by_their_own_optimizers_and_go_on_after_a_restart(tmp_path):
    """Ftrl beside Adam: a restored row takes its next step from the restored state."""
    table = TableConfig(
        "t", (Segment(1, Zeros(), Ftrl(0.5, beta=1.0)), Segment(3, RandomUniform(), Adam(0.1)))
    )
    ids, gradients = (
        np.arange(100),
        np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32),
    )
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(table)
        cluster.push({"t": (ids, gradients)})
        cluster.controller.save()
        cluster.push({"t": (ids, gradients)})
        expected = cluster.pull({"t": ids}).rows["t"]
    with Servers(tmp_path, num_ps=3) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.push({"t": (ids, gradients)})
        np.testing.assert_array_equal(cluster.pull({"t": ids}).rows["t"], expected)
        assert (expected[:, 0] != 0).all()


def test_an_id_gets_a_row_after_the_threshold_and_is_counted_until_then(cluster, stub):
    rule = AdmissionConfig(kind=FilterKind.PLAIN, default_threshold=3, capacity=10_000)
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), admission=rule))
    for expected in (0, 0, 0, -1, -2):
        cluster.push({"t": ([7], ones(1))})
        np.testing.assert_array_equal(cluster.pull({"t": [7]}).rows["t"], [[expected]])
    assert (status(stub, "t").barred, status(stub, "t").rows) == (3, 1)


def test_rows_expire_by_data_time(cluster, stub):
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=2))
    cluster.push({"t": ([1], ones(1))}, req_time_s=10 * DAY_S)
    cluster.push({"t": ([2], ones(1))}, req_time_s=12 * DAY_S)
    assert dict(stub.Expire(pb.ExpireRequest(run_id=run_id(cluster)), timeout=30).dropped) == {
        "t": 1
    }
    np.testing.assert_array_equal(cluster.pull({"t": [1, 2]}).rows["t"], [[0], [-1]])
    assert status(stub, "t").expired == 1


TIMED_WRITES = {
    "push": lambda cluster, sent, time_s: cluster.push(sent, req_time_s=time_s),
    "begin_push": lambda cluster, sent, time_s: cluster.begin_push(
        sent, req_time_s=time_s
    ).result(),
    "assign": lambda cluster, sent, time_s: cluster.assign_rows(sent, req_time_s=time_s),
}


@pytest.mark.parametrize("call", TIMED_WRITES)
def test_one_time_far_in_the_future_is_refused_and_all_rows_stay(cluster, stub, call):
    """2^32-1 is a time in 2106.

    It would make the 1000 rows of today expired, and every row to come.
    """
    cluster.create_tables(
        TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=30),
        TableConfig("other", (Segment(1, Zeros(), Sgd(1.0)),)),
    )
    today_s = int(time.time())
    ids = np.arange(1000)
    cluster.push({"t": (ids, ones(1000))}, req_time_s=today_s)
    sent = {"t": ([1000], ones(1)), "other": ([1], ones(1))}
    with pytest.raises(FutureTime, match=r"req_time_s 4294967295 .* at most 86400 s") as refusal:
        TIMED_WRITES[call](cluster, sent, 2**32 - 1)
    assert str(today_s)[:5] in str(refusal.value), "it names the clock"
    cluster.push({"t": ([1000], ones(1))}, req_time_s=today_s + DAY_S - 60)
    assert cluster.expire() == {"other": 0, "t": 0}
    assert cluster.controller.save().rows == 1001
    assert (status(stub, "t").rows, status(stub, "other").rows) == (1001, 0)
    np.testing.assert_array_equal(cluster.pull({"t": ids}).rows["t"], np.full((1000, 1), -1))


def test_writers_with_and_without_times_and_late_data_keep_each_others_rows(tmp_path):
    """Through a save, an expiry and a restart, with a table that expires after 30 days."""
    today_s = int(time.time())
    timed, untimed, late, old = (np.arange(1000) + 1000 * i for i in range(4))
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=30))
        cluster.push({"t": (old, ones(1000))}, req_time_s=today_s - 40 * DAY_S)
        cluster.push({"t": (np.concatenate([timed, late]), ones(2000))}, req_time_s=today_s)
        cluster.push({"t": (np.concatenate([timed, untimed]), ones(2000))})
        cluster.add_to_rows({"t": (timed, ones(1000))})
        cluster.push({"t": (late, ones(1000))}, req_time_s=today_s - 40 * DAY_S)
        expected = [[-1]] * 2000 + [[-2]] * 1000 + [[0]] * 1000
        cluster.controller.save()
        assert cluster.expire() == {"t": 1000}
        everything = np.concatenate([timed, untimed, late, old])
        np.testing.assert_array_equal(cluster.pull({"t": everything}).rows["t"], expected)
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(cluster.pull({"t": everything}).rows["t"], expected)
        assert cluster.expire() == {"t": 0}


def test_rows_without_a_time_survive_a_restart_though_another_server_has_seen_one(tmp_path):
    """One timed push of one id reaches one of two servers.

    The other has no data time when it is saved.
    """
    ids = np.arange(2000)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=30))
        cluster.push({"t": (ids, ones(2000))})
        cluster.push({"t": (ids[:1], ones(1))}, req_time_s=int(time.time()))
        expected = cluster.pull({"t": ids}).rows["t"]
        assert cluster.expire() == {"t": 0}
        assert cluster.controller.save().rows == 2000
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(cluster.pull({"t": ids}).rows["t"], expected)
        assert cluster.expire() == {"t": 0}
        assert cluster.controller.save().rows == 2000


def test_a_full_table_refuses_new_ids_counts_them_and_trains_the_old_ones(cluster, stub):
    budget = 4 << 20
    cluster.create_tables(
        TableConfig("t", (Segment(16, Zeros(), Sgd(1.0)),), memory_budget_bytes=budget)
    )
    for start in range(0, 100_000, 10_000):
        cluster.push({"t": (np.arange(start, start + 10_000), ones(10_000, 16))})
    full = status(stub, "t")
    assert full.bytes <= budget
    assert 0 < full.rows < 100_000
    assert full.rows + full.refused == 100_000
    cluster.push({"t": ([0], ones(1, 16))})
    np.testing.assert_array_equal(cluster.pull({"t": [0]}).rows["t"], np.full((1, 16), -2))


def test_gradients_that_are_not_finite_may_be_skipped_and_counted(cluster, stub):
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), skip_nonfinite=True))
    routing = cluster.controller.routing()
    gradients = np.array([[np.nan], [1.0]], np.float32)
    part = pb.TableGradients(
        table="t", ids=arrays.encode(np.array([1, 2])), gradients=arrays.encode(gradients)
    )
    request = pb.PushRequest(
        epoch=routing.epoch, run_id=routing.run_id, client_id="raw", sequence=1, tables=[part]
    )
    stub.Push(request, timeout=30)
    np.testing.assert_array_equal(cluster.pull({"t": [1, 2]}).rows["t"], [[0], [-1]])
    assert status(stub, "t").nonfinite == 1


def test_the_sdk_leaves_gradients_that_are_not_finite_to_a_table_that_skips_them(cluster, stub):
    segments = (Segment(1, Zeros(), Sgd(1.0)),)
    cluster.create_tables(
        TableConfig("skips", segments, skip_nonfinite=True), TableConfig("refuses", segments)
    )
    gradients = np.array([[np.inf], [1.0]], np.float32)
    cluster.push({"skips": ([1, 2], gradients)})
    np.testing.assert_array_equal(cluster.pull({"skips": [1, 2]}).rows["skips"], [[0], [-1]])
    assert status(stub, "skips").nonfinite == 1
    with pytest.raises(NonFiniteValue, match="nothing was sent"):
        cluster.push({"skips": ([1], ones(1)), "refuses": ([1, 2], gradients)})
    np.testing.assert_array_equal(cluster.pull({"skips": [1]}).rows["skips"], [[0]])


def test_dc_gets_the_sum_of_gradients_and_the_rows_pulled_first(cluster, servers):
    """g + lambda * g * g * (w - pulled), from w = 0.

    A client that did not create the table does the same.
    """
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Dc(Sgd(1.0), 0.5)),)))
    pushed = np.array([[1, 0.5], [2, 100], [4, 0]], np.float32)
    servers.connect().push({"t": ([7, 7, 8], pushed)})
    np.testing.assert_array_equal(
        cluster.pull({"t": [7, 8]}).rows["t"], [[-(3 + 0.5 * 9 * (0 - 0.5))], [-4]]
    )


def test_touched_ids_and_those_forgotten_show_in_the_status(cluster, stub):
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), touched_capacity=100))
    cluster.push({"t": (np.arange(100), ones(100))})
    assert (status(stub, "t").touched, status(stub, "t").touched_overflow) == (100, 0)
    cluster.push({"t": ([7], ones(1))})  # is in the log already
    assert (status(stub, "t").touched, status(stub, "t").touched_overflow) == (100, 0)
    cluster.push({"t": ([200], ones(1))})
    assert (status(stub, "t").touched, status(stub, "t").touched_overflow) == (0, 101)


def test_a_threshold_above_fifteen_is_kept_to(cluster, stub):
    rule = AdmissionConfig(
        kind=FilterKind.SLIDING, default_threshold=1, threshold_by_slot={3: 20}, capacity=10_000
    )
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), admission=rule))
    rare, common = (3 << 48) + 7, 7
    for _ in range(20):
        cluster.push({"t": ([rare, common], ones(2))})
    np.testing.assert_array_equal(cluster.pull({"t": [rare, common]}).rows["t"], [[0], [-19]])
    cluster.push({"t": ([rare], ones(1))})
    np.testing.assert_array_equal(cluster.pull({"t": [rare]}).rows["t"], [[-1]])
    assert status(stub, "t").barred == 21


def test_the_retention_floor_holds_back_expiry(cluster, stub):
    cluster.create_tables(
        TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1, max_expire_share=0.25)
    )
    for day in range(4):
        cluster.push({"t": (np.arange(25) + 100 * day, ones(25))}, req_time_s=(10 + day) * DAY_S)
    cluster.push({"t": ([1000], ones(1))}, req_time_s=100 * DAY_S)
    assert dict(stub.Expire(pb.ExpireRequest(run_id=run_id(cluster)), timeout=30).dropped) == {
        "t": 25
    }
    left = cluster.pull({"t": [0, 100, 300, 1000]}).rows["t"]
    np.testing.assert_array_equal(left, [[0], [-1], [-1], [-1]])


def test_expired_rows_go_periodically_and_are_not_restored(tmp_path):
    tables = [
        TableConfig(
            name, (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1, expire_days_by_slot={1: 5}
        )
        for name in ("a", "b")
    ]
    ids, late = [1, (1 << 48) + 1], [2]
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(*tables)
        cluster.push({"a": (ids, ones(2))}, req_time_s=10 * DAY_S)
        cluster.push({"a": (late, ones(1))}, req_time_s=12 * DAY_S)
        np.testing.assert_array_equal(
            cluster.pull({"a": ids}).rows["a"], [[-1], [-1]]
        )  # it stays until it is dropped
        cluster.controller.save()
    with Servers(tmp_path) as servers:
        servers.start_controller()
        servers.start_ps(0, expire_every_s=0.1)
        cluster = servers.connect()
        np.testing.assert_array_equal(cluster.pull({"a": ids + late}).rows["a"], [[0], [-1], [-1]])
        cluster.push({"b": (ids, ones(2))}, req_time_s=10 * DAY_S)
        cluster.push({"b": (late, ones(1))}, req_time_s=12 * DAY_S)
        wait_until(lambda: not cluster.pull({"b": ids}).rows["b"][0].any())
        np.testing.assert_array_equal(cluster.pull({"b": ids + late}).rows["b"], [[0], [-1], [-1]])


@pytest.mark.parametrize("expire_on_save", [False, True])
def test_a_save_drops_expired_rows_from_memory_if_it_is_told_to(tmp_path, expire_on_save):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        servers.start_ps(0, expire_on_save=expire_on_save)
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1))
        cluster.push({"t": ([1, 2], ones(2))}, req_time_s=10 * DAY_S)
        cluster.push({"t": ([3], ones(1))}, req_time_s=12 * DAY_S)
        saved = cluster.controller.save()
        assert (
            saved.rows == 3
        )  # expired rows are in the file too; whoever restores it drops and counts them
        left = [[0], [0], [-1]] if expire_on_save else [[-1], [-1], [-1]]
        np.testing.assert_array_equal(cluster.pull({"t": [1, 2, 3]}).rows["t"], left)
        assert cluster.table_stats()["t"].expired == (2 if expire_on_save else 0)


def test_the_sdk_and_ctl_tell_what_tables_hold_and_left_out_and_expire_on_demand(tmp_path):
    """Two servers with two tables: sums over both, by table."""
    segments = (Segment(16, Zeros(), Sgd(1.0)),)
    rule = AdmissionConfig(default_threshold=1, capacity=1000)
    ids = np.arange(50_000)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(
            TableConfig(
                "small", segments, expire_days=1, memory_budget_bytes=1 << 20, touched_capacity=100
            ),
            TableConfig("rare", segments, admission=rule, skip_nonfinite=True),
        )
        cluster.push({"small": (ids, ones(50_000, 16))}, req_time_s=10 * DAY_S)
        cluster.push({"rare": ([1, 2], np.array([[1] * 16, [np.nan] * 16], np.float32))})
        stats = cluster.table_stats()
        assert list(stats) == ["rare", "small"]
        rare = stats["rare"]
        assert rare == TableStats(bytes=rare.bytes, barred=1, nonfinite=1, max_rows=rare.max_rows)
        assert rare.max_rows > ids.size
        small = stats["small"]
        assert 0 < small.rows == small.created == 50_000 - small.refused
        assert small.bytes <= 2 << 20
        assert small.touched + small.touched_overflow == small.rows
        assert cluster.expire() == {"rare": 0, "small": 0}
        held_ids = ids[cluster.pull({"small": ids}).rows["small"][:, 0] != 0]
        cluster.push({"small": (held_ids[:2], ones(2, 16))}, req_time_s=12 * DAY_S)
        runner, flags = CliRunner(), ["ctl", "--model-dir", str(tmp_path)]
        dropped = json.loads(runner.invoke(app, [*flags, "expire", "--json"]).stdout)
        held = json.loads(runner.invoke(app, [*flags, "tables", "--json"]).stdout)["small"]
        assert held["expired"] == dropped["small"] > 0
        assert held["rows"] == small.rows - dropped["small"]
        assert "touched overflow" in runner.invoke(app, [*flags, "tables"]).stdout


def test_restored_rows_do_not_become_those_of_another_width_or_optimizer(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": ([7], ones(1, 2))})
        cluster.controller.save()
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        for other in (Segment(3, Zeros(), Sgd(1.0)), Segment(2, Zeros(), Adam(1.0))):
            with pytest.raises(TableConflict, match="table t exists with rows 2:sgd, asked for"):
                cluster.create_tables(TableConfig("t", (other,)), TableConfig("new", (other,)))
        np.testing.assert_array_equal(cluster.pull({"t": [7]}).rows["t"], [[-1, -1]])
        with pytest.raises(UnknownTable):
            cluster.pull({"new": [7]})


def test_what_a_ps_counts_since_it_began_is_exported_as_counters(cluster):
    cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), expire_days=1))
    cluster.push({"t": ([1, 2], ones(2))}, req_time_s=10 * DAY_S)
    cluster.push({"t": ([3], ones(1))}, req_time_s=12 * DAY_S)
    cluster.expire()
    address = cluster.controller.status().members[0].metrics_address
    page = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
    for name, count in {
        'rows_created_total{table="t"}': 3,
        'rows_expired_total{table="t"}': 2,
        'rows_refused_total{table="t"}': 0,
        "variable_updates_nonfinite_total": 0,
    }.items():
        assert f"# TYPE megalith_{name.partition('{')[0]} counter" in page
        assert f"\nmegalith_{name} {count}.0\n" in page
    assert '\nmegalith_rows{table="t"} 1.0\n' in page
