"""Serving replicas follow a real cluster: what they hold, how they come back."""

import re
import time
import urllib.request

import numpy as np
import pytest
import time_machine

import megalith.serving as serving
from megalith.client import Adagrad, RandomUniform, Segment, Sgd, TableConfig, VariableConfig
from megalith.errors import NotReady, ShardNotOwned, TooStale, UnknownTable
from megalith.runtime.rpc.server import ServerSettings
from megalith.schema.compressors import FixedR8, Fp16, OneBit
from megalith.wire.routing import buckets_of, share_of_buckets
from support.replicas import ReplicaReader, assert_serves
from support.servers import Servers
from support.waiting import wait_until

DIM = 4
NOW = 1_790_000_000


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)
        yield servers


def table_of(name, compressor=None, dim=DIM, **settings):
    more = {} if compressor is None else {"compressor": compressor}
    segment = Segment(dim, RandomUniform(-0.5, 0.5), Adagrad(0.1), **more)
    return TableConfig(name, (segment,), **settings)


def push(cluster, table, ids, dim=DIM, req_time_s=NOW):
    rng = np.random.default_rng(len(ids))
    gradients = rng.normal(size=(len(ids), dim)).astype(np.float32)
    cluster.push({table: (np.asarray(ids, np.int64), gradients)}, req_time_s=req_time_s)


def test_a_replica_serves_what_was_pushed_before_and_after_it_came(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    before = np.random.default_rng(1).integers(0, 2**62, 5000)
    push(cluster, "t", np.unique(before))
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    assert_serves(reader, cluster, "t", before)

    after = np.arange(3000)
    push(cluster, "t", after)
    push(cluster, "t", after[:100])
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.concatenate([before, after]))
    status = reader.status()
    assert status.rows == np.unique(np.concatenate([before, after])).size
    assert [ps.snapshots for ps in status.ps] == [1, 1]
    assert status.freshness.newest_data_s == NOW


def test_rows_that_expire_disappear_from_the_replica(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t", expire_days=1))
    push(cluster, "t", np.arange(1000), req_time_s=NOW - 3 * 86400)
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    assert reader.status().rows == 1000
    push(cluster, "t", np.arange(900, 1100), req_time_s=NOW)
    cluster.expire()
    reader.wait_for_a_version()
    assert reader.status().rows == 200
    assert_serves(reader, cluster, "t", np.arange(1200))
    assert sum(ps.rows_dropped for ps in reader.status().ps) == 900


@pytest.mark.parametrize(("compressor", "tolerance"), [(Fp16(), 1e-3), (FixedR8(1.0), 1 / 128)])
def test_compressed_rows_are_equal_within_their_rounding(servers, compressor, tolerance):
    cluster = servers.connect()
    cluster.create_tables(table_of("t", compressor))
    ids = np.arange(2000)
    push(cluster, "t", ids)
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    assert_serves(reader, cluster, "t", ids, tolerance)


def test_rows_of_one_bit_a_number_have_the_sign_of_what_is_trained(servers):
    """Training reads a smooth version of it, amplitude * tanh(scale * w)."""
    cluster = servers.connect()
    cluster.create_tables(table_of("t", OneBit(amplitude=0.25)))
    ids = np.arange(2000)
    push(cluster, "t", ids)
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()

    def assert_signs():
        trained = cluster.pull({"t": ids}).rows["t"]
        expected = np.where(trained > 0, np.float32(0.25), np.float32(-0.25))
        np.testing.assert_array_equal(reader.lookup("t", ids), expected)
        return expected

    before = assert_signs()
    for _ in range(5):
        cluster.push({"t": (ids, np.where(before > 0, 1, -1).astype(np.float32))})
    reader.wait_for_a_version()
    after = assert_signs()
    assert (before != after).any()
    assert not reader.lookup("t", ids + 2000).any()  # no row
    (table,) = reader.status().tables
    assert table.row_bytes < table_of("t").segments[0].dim * 4


def test_variables_follow_also_those_in_parts(servers):
    cluster = servers.connect()
    large = np.arange(80_000, dtype=np.float32).reshape(400, 200)
    cluster.create_variables(
        VariableConfig("small", np.zeros(3, np.float32), Sgd(1.0)),
        VariableConfig("large", large, Sgd(1.0)),
    )
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    cluster.push({}, variable_gradients={"small": np.ones(3, np.float32)})
    reader.wait_for_a_version()
    small, found = reader.variables("small", "large")
    np.testing.assert_array_equal(small, [-1, -1, -1])
    np.testing.assert_array_equal(found, large)


def test_the_last_values_of_variables_arrive_after_training_has_stopped(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0, delta_every_s=0.05, dense_every_s=0.5)
        cluster = servers.connect()
        cluster.create_variables(VariableConfig("w", np.zeros(3, np.float32), Sgd(1.0)))
        reader = ReplicaReader(servers.start_replica(0).address)
        reader.wait_ready()
        for _ in range(50):
            cluster.push({}, variable_gradients={"w": np.ones(3, np.float32)})

        wait_until(lambda: reader.variables("w")[0].tolist() == [-50, -50, -50], timeout_s=20)


def test_the_age_of_data_until_it_is_visible_is_on_the_metrics_page_and_in_the_status(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"), table_of("undated"))
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    push(cluster, "t", np.arange(100), req_time_s=int(time.time()) - 500)
    push(cluster, "undated", np.arange(100), req_time_s=0)

    def reported():
        report = cluster.controller.status().replicas[0].report
        return report if len(report.tables) == 2 else None

    wait_until(reported)
    report = reported()
    dated, undated = report.tables
    assert (dated.table, undated.table) == ("t", "undated")
    assert 500 <= dated.event_p50_s <= dated.event_p99_s < 560
    assert 0 < dated.p50_s <= dated.p99_s < 60
    assert (undated.event_p50_s, undated.event_p99_s) == (0, 0)
    assert undated.p50_s > 0
    assert 500 <= report.event_p50_s < 560
    with urllib.request.urlopen(f"http://{report.metrics_address}/metrics", timeout=10) as page:
        text = page.read().decode()
    assert 'megalith_replica_event_seconds_bucket{le="600.0",table="t"}' in text
    assert 'megalith_replica_event_seconds_count{table="undated"}' not in text


def test_shares_together_hold_every_row_once(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    ids = np.random.default_rng(2).integers(0, 2**62, 4000)
    push(cluster, "t", np.unique(ids))
    readers = []
    for index in range(2):
        replica = servers.start_replica(index, replica_shards=f"{index}/2")
        readers.append(ReplicaReader(replica.address))
    for reader in readers:
        reader.wait_ready()
    assert sum(reader.status().rows for reader in readers) == np.unique(ids).size
    push(cluster, "t", np.arange(1000))
    for reader in readers:
        reader.wait_for_a_version()
    trained = cluster.pull({"t": ids}).rows["t"]
    for index, reader in enumerate(readers):
        is_mine = share_of_buckets(index, 2)[buckets_of(ids)]
        np.testing.assert_array_equal(reader.lookup("t", ids[is_mine]), trained[is_mine])
        with pytest.raises(ShardNotOwned, match="are not of share"):
            reader.lookup("t", ids)
    assert sum(reader.status().rows for reader in readers) == np.unique(ids).size + 1000


def test_a_stale_replica_says_so_and_refuses_if_asked(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(10))
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    assert reader.lookup("t", [1], max_staleness_s=30).shape == (1, DIM)
    with pytest.raises(TooStale, match="ask another"):
        reader.lookup("t", [1], max_staleness_s=1e-6)


def test_a_jump_of_the_wall_clock_changes_no_figure_of_freshness(servers):
    """It jumps between a push and its version, two hours ahead: calls still have their deadlines."""
    began_s = time.monotonic()
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    server = servers.start_replica(0)
    reader = ReplicaReader(server.address)
    reader.wait_ready()
    reader.wait_for_a_version()
    push(cluster, "t", np.arange(100))
    with time_machine.travel(time.time() + 7200, tick=True):
        reader.wait_for_a_version()
        assert_serves(reader, cluster, "t", np.arange(100))
        assert reader.lookup("t", [1], max_staleness_s=60).shape == (1, DIM)
        took_s = time.monotonic() - began_s
        assert 0 <= reader.freshness().staleness_s < took_s
        assert _slowest(server, "version") < 7200
        assert _slowest(server, "freshness") < 7200


def _slowest(server, name):
    """The bound of the last bucket that counted, of a histogram of the replica's metrics page."""
    page = urllib.request.urlopen(f"http://{server._rpc.metrics_address}/metrics").read().decode()
    pattern = rf'^megalith_replica_{name}_seconds_bucket{{.*?le="([^"]*)".*}} (\S+)$'
    counts = [(float(bound), float(count)) for bound, count in re.findall(pattern, page, re.M)]
    total = max(count for _, count in counts)
    assert total > 0
    return min(bound for bound, count in counts if count == total)


def test_a_replica_that_is_not_ready_refuses_and_names_what_is_missing(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        reader = ReplicaReader(servers.start_replica(0).address)
        with pytest.raises(NotReady, match="not got all rows"):
            reader.lookup("t", [1])
        servers.start_ps(0)
        reader.wait_ready()
        with pytest.raises(UnknownTable, match="no table"):
            reader.lookup("t", [1])


def test_the_sdk_finds_replicas_through_the_controller_and_asks_another_if_one_dies(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    ids = np.arange(1000)
    push(cluster, "t", ids)
    replicas = [servers.start_replica(index) for index in range(2)]
    for replica in replicas:
        ReplicaReader(replica.address).wait_ready()
    job = cluster.controller
    wait_until(lambda: sum(each.report.is_ready for each in job.status().replicas) == 2)
    with serving.connect(model_dir=str(servers.model_dir)) as client:
        trained = cluster.pull({"t": ids}).rows["t"]
        np.testing.assert_array_equal(client.lookup({"t": ids}).rows["t"], trained)
        replicas[0].stop(0)
        for _ in range(4):
            found = client.lookup({"t": ids}, max_staleness_s=30)
            np.testing.assert_array_equal(found.rows["t"], trained)
            assert 0 <= found.freshness.staleness_s < 30


def test_the_sdk_reads_from_replicas_with_shares(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    ids = np.random.default_rng(5).integers(0, 2**62, 3000)
    push(cluster, "t", np.unique(ids))
    for index in range(3):
        ReplicaReader(
            servers.start_replica(index, replica_shards=f"{index}/3").address
        ).wait_ready()
    job = cluster.controller
    wait_until(lambda: sum(each.report.is_ready for each in job.status().replicas) == 3)
    with serving.connect(model_dir=str(servers.model_dir)) as client:
        trained = cluster.pull({"t": ids}).rows["t"]
        np.testing.assert_array_equal(client.lookup({"t": ids}).rows["t"], trained)


def test_shares_answer_when_the_whole_replicas_beside_them_have_stopped(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    ids = np.arange(1000)
    push(cluster, "t", ids)
    shares = ["", "0/2", "1/2"]
    replicas = [
        servers.start_replica(index, replica_shards=share) for index, share in enumerate(shares)
    ]
    for replica in replicas:
        ReplicaReader(replica.address).wait_ready()
    job = cluster.controller
    wait_until(lambda: sum(each.report.is_ready for each in job.status().replicas) == 3)
    with serving.connect(model_dir=str(servers.model_dir), timeout_s=4) as client:
        trained = cluster.pull({"t": ids}).rows["t"]
        np.testing.assert_array_equal(client.lookup({"t": ids}).rows["t"], trained)
        replicas[0].stop(0)
        for _ in range(4):
            np.testing.assert_array_equal(client.lookup({"t": ids}).rows["t"], trained)


def test_a_replica_that_has_started_again_with_a_share_is_no_error_for_a_client(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    ids = np.arange(1000)
    push(cluster, "t", ids)
    whole = servers.start_replica(0)
    ReplicaReader(whole.address).wait_ready()
    wait_until(lambda: any(each.report.is_ready for each in cluster.controller.status().replicas))
    with serving.connect(model_dir=str(servers.model_dir), timeout_s=30) as client:
        trained = cluster.pull({"t": ids}).rows["t"]
        client.lookup({"t": ids})
        host, _, port = whole.address.rpartition(":")
        servers.stop("replica-0")
        at_address = ServerSettings(host=host, port=int(port))
        servers.start_replica(0, replica_shards="0/2", server=at_address)
        servers.start_replica(1, replica_shards="1/2")
        for _ in range(20):
            np.testing.assert_array_equal(client.lookup({"t": ids}).rows["t"], trained)


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_a_late_replica_gets_300000_rows_and_then_changes_only(servers, order):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    ids = np.random.default_rng(7).choice(2**40, 300_000, replace=False)
    if order == "sorted":
        ids = np.sort(ids)
    for begin in range(0, ids.size, 50_000):
        push(cluster, "t", ids[begin : begin + 50_000])
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    before = reader.status()
    assert before.rows == ids.size == sum(ps.rows_applied for ps in before.ps)
    push(cluster, "t", ids[:1000])
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", ids)
    after = reader.status()
    assert sum(ps.rows_applied for ps in after.ps) == ids.size + 1000
    assert [ps.snapshots for ps in after.ps] == [1, 1]


def test_a_replica_that_fell_off_the_log_gets_all_rows_again(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t", touched_capacity=500))
    push(cluster, "t", np.arange(100))
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    push(cluster, "t", np.arange(5000))  # more changes than the log of either ps holds
    cluster.push({"t": (np.arange(4000, 4100), np.ones((100, DIM), np.float32))})
    wait_until(lambda: reader.status().rows == 5000)
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(5000))
    assert all(ps.snapshots >= 2 for ps in reader.status().ps)


def test_assigned_added_and_new_rows_follow(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(100))
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    cluster.assign_rows({"t": (np.arange(50, 150), np.full((100, DIM), 2.0, np.float32))})
    cluster.add_to_rows({"t": (np.arange(60), np.full((60, DIM), 1.0, np.float32))})
    cluster.reinitialize_rows("t", np.arange(140, 200))
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(220))
    assert reader.status().rows == 200


def test_a_table_that_notes_no_changes_is_not_served_and_others_are(servers, caplog):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"), table_of("silent", touched_capacity=0))
    push(cluster, "t", np.arange(10))
    push(cluster, "silent", np.arange(10))
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    assert_serves(reader, cluster, "t", np.arange(10))
    with pytest.raises(UnknownTable, match="silent"):
        reader.lookup("silent", [1])
    assert "does not get table silent: its touched_capacity is 0" in caplog.text


def test_two_replicas_share_the_work_of_a_version_and_are_equal(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    readers = [ReplicaReader(servers.start_replica(index).address) for index in range(2)]
    for reader in readers:
        reader.wait_ready()
    for begin in range(0, 40_000, 4000):
        push(cluster, "t", np.arange(begin, begin + 8000))
    for reader in readers:
        reader.wait_for_a_version()
        assert_serves(reader, cluster, "t", np.arange(45_000))
        assert reader.status().rows == 44_000
