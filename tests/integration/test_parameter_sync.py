"""Changed rows reach serving processes of Monolith's kind, which are processes of their own."""

import json
import logging
import re
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from megalith.client import Adagrad, RandomUniform, Segment, Sgd, TableConfig, Zeros
from megalith.ps.syncing.settings import SyncSettings
from support import serving_side
from support.processes import Process
from support.servers import Servers
from support.serving_side import Held
from support.waiting import wait_until

DIM = 4
NOW = 1_790_000_000


class Sides:
    """Serving processes by name; one that is started again has its old port."""

    def __init__(self, directory):
        self._directory, self._ports, self.processes = directory, {}, {}

    def start(self, name="a"):
        command = [sys.executable, serving_side.__file__, str(self._ports.get(name, 0))]
        process = Process(f"serving-{name}", command, self._directory, {"PYTHONPATH": "tests"})
        self.processes[name] = process
        self._ports[name] = int(process.reported("port"))
        return self.address(name)

    def address(self, name="a"):
        return f"127.0.0.1:{self._ports[name]}"

    def held(self, name="a"):
        return Held(self.address(name))

    def close(self):
        for process in self.processes.values():
            process.close()


@pytest.fixture
def sides(tmp_path):
    sides = Sides(tmp_path)
    yield sides
    sides.close()


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path / "model", num_ps=1) as servers:
        servers.start_controller()
        yield servers


def start_ps(servers, index=0, **settings):
    settings = {"sync_every_s": 0.05, **settings}
    return servers.start_ps(index, sync=SyncSettings(**settings))


def table_of(name, dim=DIM, **settings):
    return TableConfig(name, (Segment(dim, RandomUniform(-0.5, 0.5), Adagrad(0.1)),), **settings)


def push(cluster, table, ids, dim=DIM, req_time_s=NOW):
    gradients = np.random.default_rng(len(ids)).normal(size=(len(ids), dim)).astype(np.float32)
    cluster.push({table: (np.asarray(ids, np.int64), gradients)}, req_time_s=req_time_s)


def assert_holds(sides, cluster, ids, name="a", table="t", model="ps_0"):
    """Until the serving process has the rows that training has now; zeros for absent ids."""
    ids = np.unique(ids)
    trained = cluster.pull({table: ids}).rows[table]

    def is_equal():
        held_ids, rows = sides.held(name).table(f"{model}/{table}")
        return np.array_equal(held_ids, ids) and np.array_equal(rows, trained)

    wait_until(is_equal, what=f"{name} holds the rows")


def metrics_of(ps):
    page = urllib.request.urlopen(f"http://{ps._rpc.metrics_address}/metrics").read().decode()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if not line.startswith("#")
    }


@pytest.mark.golden("ParameterSyncOpsTest.test_parameter_sync_client")
def test_two_targets_get_the_rows_that_were_trained(servers, sides, caplog):
    caplog.set_level(logging.INFO)
    targets = sorted([sides.start("a"), sides.start("b")])
    ps = start_ps(servers, sync_targets=",".join(targets))
    cluster = servers.connect()
    cluster.create_tables(TableConfig("t", (Segment(3, Zeros(), Sgd(0.1)),)))
    cluster.push({"t": (np.array([0, 0, 1]), -np.ones((3, 3), np.float32))})
    for name in "ab":
        assert_holds(sides, cluster, [0, 1], name)
        ids, rows = sides.held(name).table("ps_0/t")
        assert ids.tolist() == [0, 1]
        np.testing.assert_allclose(rows, [[0.2] * 3, [0.1] * 3], rtol=1e-6)
        assert set(sides.held(name).calls) == {"ps_0 hashtable_assign t_id t_value"}

    def results():
        texts = re.findall(r"parameter sync result=(.*)", caplog.text)
        return [each for text in texts for each in json.loads(text)["responses"]]

    wait_until(lambda: len(results()) >= 2, what="the results")
    assert {each["target"] for each in results()} == set(targets)
    assert {each["status_code"] for each in results()} == {0}
    assert max(each["update_num"] for each in results()) == 2
    figures = metrics_of(ps)
    for target in targets:
        tags = f'{{model_name="ps_0",status="OK",target="{target}"}}'
        assert figures[f"monolith_training_parameter_sync_fid_count_total{tags}"] >= 2
        assert figures[f"monolith_training_parameter_sync_latency_count{tags}"] >= 1
        assert figures[f"monolith_training_parameter_sync_byte_size_total{tags}"] > 0
        assert 0 <= figures[f'megalith_sync_staleness_seconds{{target="ps_0@{target}"}}'] < 5


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_300_000_rows_arrive_in_calls_of_4_mib_and_changes_follow(servers, sides, order):
    rng = np.random.default_rng(7)
    ids = np.unique(rng.integers(0, 2**62, 300_000))
    if order == "random":
        ids = rng.permutation(ids)
    start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t"), table_of("empty"))
    for begin in range(0, ids.size, 50_000):
        push(cluster, "t", ids[begin : begin + 50_000])
    assert_holds(sides, cluster, ids)
    push(cluster, "t", ids[:1000])
    assert_holds(sides, cluster, ids)
    held = sides.held()
    assert max(held.sizes) < 4.1 * 2**20
    assert set(held.calls) == {"ps_0 hashtable_assign empty_id empty_value t_id t_value"}


def test_nothing_is_sent_when_nothing_changed(servers, sides):
    start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(10))
    assert_holds(sides, cluster, np.arange(10))
    push(cluster, "t", np.arange(10))
    assert_holds(sides, cluster, np.arange(10))
    calls = sides.held().calls
    for _ in range(5):
        assert sides.held().calls == calls


def test_rows_that_expire_are_sent_as_zeros(servers, sides):
    start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t", expire_days=1))
    push(cluster, "t", np.arange(1000), req_time_s=NOW - 3 * 86400)
    assert_holds(sides, cluster, np.arange(1000))
    push(cluster, "t", np.arange(900, 1100), req_time_s=NOW)
    cluster.expire()
    assert_holds(sides, cluster, np.arange(1100))
    _, rows = sides.held().table("ps_0/t")
    assert not rows[:900].any()
    assert rows[900:].all(axis=1).all()


def test_a_target_that_is_down_for_a_while_gets_everything_after_it_is_back(servers, sides):
    sides.start("b")
    targets = f"{sides.start('a')},{sides.address('b')}"
    ps = start_ps(servers, sync_targets=targets)
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(5000))
    assert_holds(sides, cluster, np.arange(5000), "a")
    sides.processes["a"].kill()
    push(cluster, "t", np.arange(4000, 9000))
    assert_holds(sides, cluster, np.arange(9000), "b")
    target = sides.address("a")
    tags = f'{{model_name="ps_0",status="KO",target="{target}"}}'
    name = f"monolith_training_parameter_sync_latency_count{tags}"
    wait_until(lambda: metrics_of(ps).get(name, 0) >= 2, what="calls have failed")
    assert metrics_of(ps)[f'megalith_sync_staleness_seconds{{target="ps_0@{target}"}}'] > 0.05
    sides.start("a")  # a new process, which has nothing
    assert_holds(sides, cluster, np.arange(9000), "a")


def test_a_target_that_is_started_again_while_nothing_changes_gets_everything(servers, sides):
    start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(500))
    assert_holds(sides, cluster, np.arange(500))
    sides.processes["a"].kill()
    sides.start()  # a new process, which has nothing
    assert_holds(sides, cluster, np.arange(500))


def test_a_target_that_is_gone_while_nothing_changes_grows_stale_and_that_is_said(
    servers, sides, caplog
):
    ps = start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(500))
    assert_holds(sides, cluster, np.arange(500))
    staleness = f'megalith_sync_staleness_seconds{{target="ps_0@{sides.address()}"}}'
    sides.processes["a"].kill()
    wait_until(lambda: metrics_of(ps)[staleness] > 1, what="the target grows stale")
    assert "did not take everything; it is sent again: it is not reached" in caplog.text
    sides.start()
    assert_holds(sides, cluster, np.arange(500))
    wait_until(lambda: metrics_of(ps)[staleness] < 1, what="the target is fresh again")


def test_targets_of_a_ps_that_hears_no_controller_grow_stale_and_that_is_said(
    servers, sides, caplog
):
    ps = start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(100))
    assert_holds(sides, cluster, np.arange(100))
    servers.stop("controller")
    staleness = f'megalith_sync_staleness_seconds{{target="ps_0@{sides.address()}"}}'
    wait_until(lambda: metrics_of(ps)[staleness] > 1, what="the target grows stale")
    assert caplog.text.count("the targets get nothing: this ps has not heard its controller") == 1
    servers.start_controller()
    wait_until(lambda: metrics_of(ps)[staleness] < 1, what="the target is fresh again")


def test_a_target_that_was_only_cut_off_goes_on_where_it_stopped_if_told_so(servers, sides):
    ps = start_ps(servers, sync_targets=sides.start(), sync_resume=True, sync_timeout_ms=300)
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(5000))
    assert_holds(sides, cluster, np.arange(5000))
    target = sides.address()
    full = f'megalith_sync_full_pushes_total{{target="ps_0@{target}"}}'
    before = metrics_of(ps)[full]
    sides.processes["a"].pause()
    push(cluster, "t", np.arange(4000, 9000))
    tags = f'{{model_name="ps_0",status="KO",target="{target}"}}'
    name = f"monolith_training_parameter_sync_latency_count{tags}"
    wait_until(lambda: metrics_of(ps).get(name, 0) >= 2, what="calls have failed")
    sides.processes["a"].signal(18)  # SIGCONT
    assert_holds(sides, cluster, np.arange(9000))
    assert metrics_of(ps)[full] == before


def test_a_target_that_is_killed_in_mid_push_gets_everything(servers, sides):
    ids = np.random.default_rng(3).permutation(200_000)
    sides.start()
    Held(sides.address(), "die_after 1")
    start_ps(servers, sync_targets=sides.address())
    cluster = servers.connect()
    cluster.create_tables(table_of("t", dim=16))
    push(cluster, "t", ids, dim=16)
    wait_until(lambda: sides.processes["a"].poll() is not None, what="the target dies")
    push(cluster, "t", ids[:1000], dim=16)
    sides.start()
    assert_holds(sides, cluster, ids)


def test_a_target_that_answers_an_error_is_sent_the_rows_again_and_others_are_not_kept(
    servers, sides, caplog
):
    sides.start("a")
    sides.start("b")
    Held(sides.address("a"), "refuse NOT_FOUND")
    start_ps(servers, sync_targets=f"{sides.address('a')},{sides.address('b')}")
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(3000))
    assert_holds(sides, cluster, np.arange(3000), "b")
    wait_until(lambda: "refused by the test" in caplog.text, what="the complaint")
    assert caplog.text.count("did not take everything") == 1
    Held(sides.address("a"), "refuse ")
    assert_holds(sides, cluster, np.arange(3000), "a")


def test_a_table_without_a_delta_log_is_left_out_and_said(servers, sides, caplog):
    ps = start_ps(servers, sync_targets=sides.start())
    cluster = servers.connect()
    cluster.create_tables(table_of("t"), table_of("silent", touched_capacity=0))
    push(cluster, "silent", np.arange(10))
    push(cluster, "t", np.arange(10))
    assert_holds(sides, cluster, np.arange(10))
    assert list(sides.held().rows) == ["ps_0/t"]
    assert "table silent is not synced: its touched_capacity is 0" in caplog.text
    assert metrics_of(ps)["megalith_sync_tables_left_out"] == 1


def test_a_target_behind_the_delta_log_gets_all_rows(servers, sides, caplog):
    start_ps(servers, sync_targets=sides.start(), sync_resume=True, sync_timeout_ms=200)
    cluster = servers.connect()
    cluster.create_tables(table_of("t", touched_capacity=2000))
    push(cluster, "t", np.arange(1000))
    assert_holds(sides, cluster, np.arange(1000))
    sides.processes["a"].pause()
    for begin in range(0, 20_000, 1000):
        push(cluster, "t", np.arange(begin, begin + 1000))
    sides.processes["a"].signal(18)
    assert_holds(sides, cluster, np.arange(20_000))
    assert "gets all rows of table t, and rows that were dropped meanwhile stay" in caplog.text


def test_targets_of_a_file_come_and_go(servers, sides, tmp_path, caplog):
    listed = tmp_path / "targets"
    listed.write_text(sides.start("a"))
    start_ps(servers, sync_targets_file=str(listed))
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(100))
    assert_holds(sides, cluster, np.arange(100), "a")
    listed.write_text(sides.start("b"))
    assert_holds(sides, cluster, np.arange(100), "b")
    push(cluster, "t", np.arange(200))
    assert_holds(sides, cluster, np.arange(200), "b")
    assert sides.held("a").table("ps_0/t")[0].size == 100
    listed.write_text("nonsense")
    wait_until(lambda: "the targets stay as they are" in caplog.text, what="the complaint")
    push(cluster, "t", np.arange(300))
    assert_holds(sides, cluster, np.arange(300), "b")
    listed.write_text("")
    wait_until(lambda: "targets is empty" in caplog.text, what="the second complaint")
    push(cluster, "t", np.arange(400))
    assert_holds(sides, cluster, np.arange(400), "b")


def test_a_server_that_stops_sends_what_is_left(servers, sides):
    start_ps(servers, sync_targets=sides.start(), sync_every_s=600.0)
    cluster = servers.connect()
    cluster.create_tables(table_of("t"))
    push(cluster, "t", np.arange(100))
    trained = cluster.pull({"t": np.arange(100)}).rows["t"]
    servers.stop("ps-0")
    ids, rows = sides.held().table("ps_0/t")
    assert ids.tolist() == list(range(100))
    np.testing.assert_array_equal(rows, trained)


def test_ids_go_to_the_shard_where_monolith_looks_for_them(tmp_path, sides):
    one = sides.start("one")
    both = sides.start("both")
    with Servers(tmp_path / "model", num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            targets = f"ps_1@{one},{both}"
            start_ps(servers, index, sync_targets=targets, sync_num_ps=2, sync_model_name="m")
        cluster = servers.connect()
        cluster.create_tables(table_of("t"))
        ids = np.unique(np.random.default_rng(5).integers(0, 2**62, 3000))
        push(cluster, "t", ids)
        even, odd = ids[ids % 2 == 0], ids[ids % 2 == 1]
        assert_holds(sides, cluster, even, "both", model="m:ps_0")
        assert_holds(sides, cluster, odd, "both", model="m:ps_1")
        assert_holds(sides, cluster, odd, "one", model="m:ps_1")
        assert list(sides.held("one").rows) == ["m:ps_1/t"]


def test_the_process_of_the_serving_side_knows_no_message_of_megalith():
    assert "megalith" not in Path(serving_side.__file__).read_text().replace("Megalith", "")
