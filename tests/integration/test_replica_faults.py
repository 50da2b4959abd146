"""What goes wrong around a replica ends in "caught up and equal", or in a clear error."""

import contextlib
import re
import time

import grpc
import numpy as np
import pytest

import megalith.serving as serving
from megalith.client import RandomUniform, Segment, Sgd, TableConfig
from megalith.control import Controller
from megalith.engine.serving_table import ServingTable
from megalith.errors import MessageTooLarge, UnknownTable
from megalith.protos import parameter_server_pb2, parameter_server_pb2_grpc
from megalith.replica.copies.followed_servers import FollowedServers, HeldShare
from megalith.replica.copies.model import ServedModel
from megalith.runner.free_ports import free_ports
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire.routing import Routing, share_of_buckets
from support.proxy import FaultyProxy, Link
from support.replicas import ReplicaReader, assert_serves
from support.servers import Servers
from support.spoiling_relay import SpoilingRelay
from support.waiting import wait_until

DIM = 4


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)
        yield servers


def table_of(dim=DIM, name="t", **settings):
    return TableConfig(name, (Segment(dim, RandomUniform(-0.5, 0.5), Sgd(0.1)),), **settings)


def push(cluster, ids, dim=DIM, table="t"):
    ids = np.asarray(ids, np.int64)
    cluster.push({table: (ids, np.ones((ids.size, dim), np.float32))})


def reader_of(servers, index=0, **settings):
    reader = ReplicaReader(servers.start_replica(index, **settings).address)
    reader.wait_ready()
    return reader


@pytest.fixture
def followed(servers):
    """Follows the ps of `servers` at other addresses: (what follows, the model that it fills)."""
    model = ServedModel(0)
    share = HeldShare(0, 0, share_of_buckets(0, 0))
    following = FollowedServers("faults", share, lambda version: None, 256 << 20)
    yield following, model
    following.stop()


def follow(followed, cluster, address_of):
    """Start to follow, each ps at the address that `address_of` makes of its own."""
    following, model = followed
    routing = cluster.controller.routing_now(10, "")
    addresses = tuple(address_of(address) for address in routing.addresses)
    following.follow(_at(routing, addresses), model)


def _at(routing, addresses):
    return Routing(
        epoch=routing.epoch,
        addresses=addresses,
        owners=routing.owners,
        run_id=routing.run_id,
        instances=routing.instances,
    )


def wait_until_equal(model, cluster, ids):
    """Until the table `t` is served with the rows that the cluster has now."""
    trained = cluster.pull({"t": ids}).rows["t"]

    def is_equal():
        tables = [each for each in model.tables if each.is_whole]
        return tables and np.array_equal(model.lookup("t", ids), trained)

    wait_until(is_equal)


def _cut_rows(message):
    if not message.HasField("rows"):
        return False
    message.rows.rows = message.rows.rows[:-1]
    return True


def _say_an_id_twice(message):
    if not message.HasField("rows"):
        return False
    ids = np.frombuffer(message.rows.ids, np.int64).copy()
    ids[-1] = ids[0]
    message.rows.ids = ids.tobytes()
    return True


def _name_another_table(message):
    if not message.HasField("rows"):
        return False
    message.rows.table = "nobody's"
    return True


def _lose_rows(message):
    """All of a message but the first row."""
    if not message.HasField("rows"):
        return False
    rows = message.rows
    width = len(rows.rows) // (len(rows.ids) // 8)
    rows.ids = rows.ids[:8]
    rows.rows = rows.rows[:width]
    rows.times = rows.times[:4]
    return True


def _forget_the_kind(message):
    if not message.HasField("rows"):
        return False
    message.ClearField("rows")
    return True


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_cut_rows, "rows of table t"),
        (_say_an_id_twice, "1 of 1[0-9]{3} ids are repeated"),
        (_name_another_table, "rows of table"),
        (_forget_the_kind, "unknown here"),
        (_lose_rows, "rows, dropped ids and variables of version .* came from ps-., and it says"),
    ],
)
def test_a_corrupt_delta_is_a_typed_error_and_then_equal(
    servers, followed, caplog, spoil, complaint
):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(2000)
    push(cluster, ids)
    _, model = followed
    with contextlib.ExitStack() as stack:
        relays = []

        def through_a_relay(address):
            relays.append(stack.enter_context(SpoilingRelay(address)))
            return relays[-1].address

        follow(followed, cluster, through_a_relay)
        wait_until_equal(model, cluster, ids)
        for relay in relays:
            relay.spoil = spoil
        push(cluster, ids)
        push(cluster, ids + 1000)
        wait_until(lambda: all(relay.spoiled for relay in relays))
        wait_until_equal(model, cluster, np.arange(3500))
        assert model.rows == 3000
    complaints = [each for each in caplog.messages if "is not followed" in each]
    assert [each for each in complaints if re.search(complaint, each)], complaints
    assert "following ps" not in caplog.text  # nothing unforeseen was raised


def test_a_snapshot_that_lacks_rows_is_asked_for_again(servers, followed, caplog):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(2000)
    push(cluster, ids)
    _, model = followed
    with contextlib.ExitStack() as stack:

        def through_a_relay(address):
            relay = stack.enter_context(SpoilingRelay(address))
            relay.spoil = _lose_rows
            return relay.address

        follow(followed, cluster, through_a_relay)
        wait_until_equal(model, cluster, ids)
        assert model.rows == 2000
    assert "sent 1 rows of table t, and says" in caplog.text


@pytest.fixture
def links(followed):
    """Follows the ps of a cluster over links, once it is called with the cluster; returns them."""
    with contextlib.ExitStack() as stack:
        made = []

        def over_a_link(address):
            _, _, port = address.rpartition(":")
            (link_port,) = free_ports(1)
            made.append(stack.enter_context(Link(link_port, int(port))))
            return made[-1].address

        def start(cluster):
            follow(followed, cluster, over_a_link)
            return made

        yield start
        followed[0].stop()


def test_a_stream_that_was_cut_goes_on_from_the_version_that_it_had(servers, followed, links):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(2000)
    push(cluster, ids)
    following, model = followed
    cut = links(cluster)
    wait_until_equal(model, cluster, ids)
    for link in cut:
        link.cut()
    wait_until(lambda: not any(each.is_connected for each in following.all))
    push(cluster, ids[:300])
    push(cluster, ids + 1000)
    applied = sum(each.copy.counts.rows_applied for each in following.all)
    for link in cut:
        link.mend()
    wait_until_equal(model, cluster, np.arange(3500))

    counts = [each.copy.counts for each in following.all]
    assert [(each.resumed, each.snapshots) for each in counts] == [(1, 1), (1, 1)]
    changed = np.union1d(ids[:300], ids + 1000).size
    assert sum(each.rows_applied for each in counts) - applied == changed


@pytest.mark.long
def test_a_ps_that_nobody_hears_is_given_up_and_the_stream_goes_on_later(servers, followed, links):
    """As if its machine had vanished: nothing comes, and no connection ends."""
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(2000)
    push(cluster, ids)
    following, model = followed
    silent = links(cluster)
    wait_until_equal(model, cluster, ids)
    for link in silent:
        link.swallow()
    push(cluster, ids[:300])
    # 20 s until it asks, and 10 s for the answer
    wait_until(lambda: not any(each.is_connected for each in following.all), 120)
    push(cluster, ids + 1000)
    for link in silent:
        link.mend()
    wait_until_equal(model, cluster, np.arange(3500))
    counts = [each.copy.counts for each in following.all]
    assert [each.snapshots for each in counts] == [1, 1]
    assert all(each.resumed >= 1 for each in counts)


@pytest.mark.long
def test_connections_that_are_cut_in_the_middle_of_messages_end_equal(servers, followed):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(60_000)
    push(cluster, ids)
    _, model = followed
    with contextlib.ExitStack() as stack:
        proxies = []

        def through_a_proxy(address):
            host, _, port = address.rpartition(":")
            proxy = FaultyProxy(("127.0.0.1", 0), (host, int(port)), len(proxies), cut=0.1)
            proxies.append(stack.enter_context(proxy))
            return proxy.address

        follow(followed, cluster, through_a_proxy)

        def cuts():
            return sum(each.counts["cut requests"] + each.counts["cut replies"] for each in proxies)

        def is_felt():
            push(cluster, ids[:5000])
            return cuts() > 5

        wait_until(is_felt)
        wait_until_equal(model, cluster, ids)
        assert model.rows == ids.size


def test_a_table_that_was_dropped_or_got_another_width_while_it_is_followed(tmp_path):
    """Only a table of an earlier run may be dropped or widened: so the job is started twice."""
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index)
        cluster = servers.connect()
        cluster.create_tables(table_of(), table_of(name="old"))
        push(cluster, np.arange(100))
        push(cluster, np.arange(100), table="old")
        cluster.controller.save()
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)
        cluster = servers.connect()
        reader = reader_of(servers)
        assert reader.status().rows == 200
        cluster.drop_table("old")
        cluster.create_tables(table_of(dim=7), allow_new_layout=True)
        push(cluster, np.arange(50), dim=7)
        wait_until(lambda: reader.status().rows == 50)
        reader.wait_for_a_version()
        assert_serves(reader, cluster, "t", np.arange(100))
        with pytest.raises(UnknownTable, match="old"):
            reader.lookup("old", [1])


def test_a_replica_without_memory_for_a_row_says_so_and_heals(servers, monkeypatch):
    """The rows of a version that was not applied come again; nothing is served half."""
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(100))
    reader = reader_of(servers)
    stored = ServingTable.upsert_compressed
    monkeypatch.setattr(ServingTable, "upsert_compressed", lambda self, ids, rows, times: ids.size)
    push(cluster, np.arange(1000))
    wait_until(lambda: any("no room" in ps.complaint for ps in reader.status().ps))
    monkeypatch.setattr(ServingTable, "upsert_compressed", stored)
    wait_until(lambda: reader.status().rows == 1000)
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(1000))


def test_a_replica_of_a_ps_that_is_cut_off_from_the_controller_grows_stale(tmp_path):
    """Another process may have its seat, and rows that this ps does not have."""
    with Servers(tmp_path, num_ps=1) as servers:
        controller = servers.start_controller()
        _, _, port = controller.address.rpartition(":")
        (link_port,) = free_ports(1)
        with Link(link_port, int(port)) as link:
            membership = servers.membership(controller=link.address)
            servers.start_ps(0, delta_every_s=0.05, membership=membership)
            cluster = servers.connect()
            cluster.create_tables(table_of())
            push(cluster, np.arange(10))
            reader = reader_of(servers)
            link.cut()
            wait_until(lambda: reader.freshness().staleness_s > 1)
            (ps,) = reader.status().ps
            assert "another process may have its seat" in ps.complaint
            link.mend()
            wait_until(lambda: reader.freshness().staleness_s < 1)
            assert [(ps.resumed > 0, ps.snapshots) for ps in reader.status().ps] == [(True, 1)]


def test_without_a_controller_versions_come_also_after_the_leases_of_the_ps(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(10))
    reader = reader_of(servers)
    servers.stop("controller")
    before = [ps.version for ps in reader.status().ps]

    def versions_of_5_s():
        now = [ps.version for ps in reader.status().ps]
        return min(np.subtract(now, before)) > 100

    wait_until(versions_of_5_s)
    assert [ps.resumed for ps in reader.status().ps] == [0, 0]


def test_the_controller_is_gone_and_the_replica_follows_on(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(10))
    reader = reader_of(servers)
    servers.stop("controller")
    reader.pin()
    reader.unpin()
    reader.wait_for_a_version()
    assert reader.status().rows == 10
    assert reader.freshness().staleness_s < 60


def epoch_at(address):
    """Of the map of that ps; 0 = it has none."""
    with grpc.insecure_channel(address) as opened:
        stub = parameter_server_pb2_grpc.ParameterServerStub(opened)
        return stub.GetPsStatus(parameter_server_pb2.GetPsStatusRequest(), timeout=10).epoch


def test_a_stream_that_begins_while_there_is_no_map_drops_no_rows_of_other_ps(servers):
    """A controller without a journal has no map until all ps are there again."""
    cluster = servers.connect()
    cluster.create_tables(table_of(touched_capacity=1000))
    ids = np.arange(900)
    push(cluster, ids)
    cluster.controller.save()
    reader = reader_of(servers)
    servers.stop("ps-1")
    servers.stop("controller")
    (servers.model_dir / "controller_state.json").unlink()
    servers.start_controller()
    first = reader.status().ps[0]
    wait_until(lambda: epoch_at(first.address) == 0, what="ps-0 has no map")
    reader.pin()
    reader.unpin()

    def has_begun():
        now = reader.status().ps[0]
        return now.resumed > first.resumed or "no map now" in now.complaint

    wait_until(has_begun)
    servers.start_ps(1, delta_every_s=0.05)
    wait_until(lambda: reader.status().ps[1].is_connected)
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", ids)

    routing = cluster.controller.routing_now(10, "")
    many = np.arange(10_000)
    of_first = many[routing.owner_of(many) == 0][:3000]
    push(cluster, of_first)  # more than the delta log holds
    wait_until(lambda: reader.status().ps[0].snapshots > first.snapshots)
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", many)


def test_the_reason_why_a_replica_is_not_ready_is_in_the_status_of_the_job(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        control = Controller(None, str(servers.model_dir), 10)
        servers.start_replica(0)
        replica = wait_until(lambda: control.status().replicas)[0]
        assert not replica.report.is_ready
        wait_until(lambda: "not ready" in control.status().replicas[0].report.complaint)


def test_a_reply_above_the_limit_of_a_message_is_a_typed_error(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of(dim=256))
    push(cluster, np.arange(2000), dim=256)
    reader = reader_of(servers, server=ServerSettings(max_message_bytes=1 << 20))
    with pytest.raises(MessageTooLarge, match="larger than max"):
        reader.lookup_once("t", np.arange(2000))
    assert reader.lookup("t", np.arange(500)).shape == (500, 256)


def test_a_client_reads_on_while_the_controller_is_gone(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(1000)
    push(cluster, ids)
    reader_of(servers)
    wait_until(lambda: any(each.report.is_ready for each in cluster.controller.status().replicas))
    trained = cluster.pull({"t": ids}).rows["t"]
    call_s = 30.0
    with serving.connect(model_dir=str(servers.model_dir), timeout_s=call_s) as client:
        client.lookup({"t": ids})
        servers.stop("controller")
        began_s = time.monotonic()
        longest_s = 0.0
        while time.monotonic() - began_s < 5:  # the client looks for replicas every 2 s
            asked_s = time.monotonic()
            np.testing.assert_array_equal(client.lookup({"t": ids}).rows["t"], trained)
            longest_s = max(longest_s, time.monotonic() - asked_s)
    assert longest_s < call_s / 2, "a lookup that waits for the controller takes all of it"
