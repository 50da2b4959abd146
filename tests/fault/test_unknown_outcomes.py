"""A push whose caller gave up: applied once if its server goes on, counted if its server is
replaced."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.client import Segment, Sgd, TableConfig, VariableConfig, connect
from megalith.errors import DeadlinePassed, OutcomeLost, OutcomeUnknown, Unavailable
from support.processes import Processes
from support.waiting import wait_until

KEYS = np.arange(200)  # of both servers
MINUS_ONES = np.full((KEYS.size, 1), -1.0, np.float32)
LANES = pytest.mark.parametrize("bulk_lane", [True, False], ids=["lane", "unary"])


class Cluster:
    """Two ps; each test has a table and a variable of its own."""

    def __init__(self, processes):
        self.processes = processes
        processes.start_controller(num_ps=2, num_workers=0, suspect_s=1)
        self.ps = [processes.start_member("ps", index) for index in range(2)]

    def connect(self, **settings):
        return connect(model_dir=str(self.processes.model_dir), **settings)

    def create(self, name):
        with self.connect(timeout_s=60) as cluster:
            cluster.create_tables(TableConfig(name, (Segment(1, optimizer=Sgd(1.0)),)))
            cluster.create_variables(VariableConfig(name, np.zeros((), np.int64)))

    def rows(self, name):
        """The distinct values of all rows."""
        with self.connect(timeout_s=60) as reader:
            return sorted(set(reader.pull({name: KEYS}).rows[name][:, 0].tolist()))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield Cluster(processes)


@pytest.fixture
def name(request, cluster):
    name = request.node.name.replace("[", "-").replace("]", "")
    cluster.create(name)
    yield name
    for ps in cluster.ps:  # a test that fails leaves none stopped
        ps.signal(signal.SIGCONT)


@LANES
def test_a_push_that_a_stopped_server_gets_after_its_callers_deadline_counts_once(
    cluster, name, bulk_lane
):
    ps = cluster.ps
    with cluster.connect(timeout_s=3.0, bulk_lane=bulk_lane) as client:
        client.pull({name: KEYS}, [name])  # connected
        ps[1].pause()
        with pytest.raises(
            OutcomeUnknown,
            # Beside other work ps-0 may be late as well.
            match=r"(ps-0, )?ps-1 did not answer a write.*wait_for_last_write\(\).*applied twice",
        ):
            client.push({name: (KEYS, MINUS_ONES)}, add_to_variables={name: 1})
        with pytest.raises(OutcomeUnknown, match="nothing of this write was sent"):
            client.push({name: (KEYS, 100 * MINUS_ONES)})
        with pytest.raises(OutcomeUnknown):
            client.wait_for_last_write()
        ps[1].signal(signal.SIGCONT)
        added = wait_until(lambda: outcome_of(client))
        assert added == {name: 1}
        assert cluster.rows(name) == [1.0]
        client.push({name: (KEYS, MINUS_ONES)})
        assert cluster.rows(name) == [2.0]
        assert client.writes_unknown == 0


def outcome_of(client):
    try:
        return client.wait_for_last_write()
    except OutcomeUnknown:
        return None


@LANES
def test_a_push_whose_server_was_replaced_is_counted_and_not_repeated(cluster, name, bulk_lane):
    ps = cluster.ps
    with cluster.connect(timeout_s=3.0, bulk_lane=bulk_lane) as client:
        client.pull({name: KEYS}, [name])
        ps[1].pause()
        with pytest.raises(OutcomeUnknown):
            client.push({name: (KEYS, MINUS_ONES)})
        ps[1].kill()
        ps[1] = cluster.processes.start_member("ps", 1)

        def is_lost():
            try:
                client.wait_for_last_write()
            except OutcomeLost as error:
                return str(error)
            except OutcomeUnknown:
                return None
            raise AssertionError("nobody can know that it was applied")

        assert "has replaced the one that it was sent to" in wait_until(is_lost)
        assert client.writes_unknown == 1
        cluster.create(name)
        assert cluster.rows(name) == [0.0, 1.0]  # the part of ps-0 is applied
        client.push({name: (KEYS, MINUS_ONES)})
        assert cluster.rows(name) == [1.0, 2.0]


@LANES
def test_a_push_is_finished_by_a_replacement_that_was_restored_from_an_increment(
    tmp_path, bulk_lane
):
    table = TableConfig("t", (Segment(1, optimizer=Sgd(1.0)),))
    with Processes(tmp_path) as processes:
        processes.start_controller(num_ps=1, num_workers=0, suspect_s=1, increment_every_s=0.2)
        ps = processes.start_member("ps", 0)
        model_dir = str(processes.model_dir)
        with connect(model_dir=model_dir, timeout_s=120) as patient:  # until the ps is ready
            patient.create_tables(table)
            base = Path(patient.controller.save().path)
        with connect(model_dir=model_dir, timeout_s=3.0, bulk_lane=bulk_lane) as client:
            client.push({"t": (KEYS, MINUS_ONES)})
            wait_until(lambda: read_chain(base).number > 0, what="the push is in an increment")
            wait_until(lambda: not client.controller.status().unsaved)
            ps.pause()
            with pytest.raises(OutcomeUnknown):
                client.push({"t": (KEYS, MINUS_ONES)})

            ps.kill()
            processes.start_member("ps", 0)
            wait_until(lambda: outcome_of(client) is not None, what="the replacement answers")
            rows = client.pull({"t": KEYS}).rows["t"]
            np.testing.assert_array_equal(rows, np.full((KEYS.size, 1), 2.0))
            assert client.writes_unknown == 0


def test_what_a_client_did_not_learn_before_it_closed_is_said(cluster, name, caplog):
    ps = cluster.ps
    client = cluster.connect(timeout_s=4.0)
    client.pull({name: KEYS}, [name])
    ps[1].pause()
    with pytest.raises(OutcomeUnknown):
        client.push({name: (KEYS, MINUS_ONES)})
    client.close()
    assert client.writes_unknown == 1
    assert "a write may or may not have been applied at ps-1: the client was closed" in caplog.text
    ps[1].signal(signal.SIGCONT)


@LANES
def test_sums_are_exact_though_deadlines_are_shorter_than_the_stalls_of_servers(
    cluster, name, bulk_lane
):
    """Four clients with deadlines of half a second; the servers stop for longer, in turns.

    Each push counts once.
    """
    ps = cluster.ps
    stop = threading.Event()
    stalls, counts, unknown = [0], [0] * 4, [0] * 4
    seconds = float(os.environ.get("MEGALITH_TEST_SOAK_S", "4"))

    def stall():
        while not stop.is_set():
            member = ps[stalls[0] % 2]
            member.pause()
            time.sleep(0.8)
            member.signal(signal.SIGCONT)
            stalls[0] += 1
            time.sleep(0.3)

    def train(number):
        with cluster.connect(timeout_s=0.5, bulk_lane=bulk_lane) as client:
            begun = time.monotonic()
            while time.monotonic() - begun < seconds:
                try:
                    client.push({name: (KEYS, MINUS_ONES)})
                except OutcomeUnknown as error:
                    unknown[number] += 1
                    if "nothing of this write was sent" in str(error):
                        continue
                    while outcome_of(client) is None:
                        pass
                except (DeadlinePassed, Unavailable):  # nothing of it was sent
                    continue
                counts[number] += 1

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    stalling = threading.Thread(target=stall)
    for thread in (*threads, stalling):
        thread.start()
    for thread in threads:
        thread.join(120)
    stop.set()
    stalling.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert stalls[0] > 1
    assert sum(unknown) > 0  # the fault was felt
    assert cluster.rows(name) == [float(sum(counts))]
