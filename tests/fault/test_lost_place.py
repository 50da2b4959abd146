"""A ps that lost its place, and does not know it, acknowledges nothing."""

import signal
import threading
import time

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, connect
from megalith.runtime.free_ports import free_ports
from megalith.wire.errors import MegalithError
from support.processes import Processes
from support.proxy import FaultyProxy
from support.waiting import wait_until

TABLE = TableConfig("t", (Segment(1, optimizer=Sgd(1.0)),))
IDS = np.arange(200)
GRADIENTS = np.full((200, 1), -1.0, np.float32)  # each push adds 1 to each row


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as started:
        yield started


def connected(processes, **settings):
    return connect(model_dir=str(processes.model_dir), timeout_s=60, **settings)


def value(cluster):
    return float(cluster.pull({"t": IDS}).rows["t"][0, 0])


def start_behind_proxy(processes, **settings):
    """A controller and its ps 0, whose only way to it is a proxy."""
    controller_port, proxy_port = free_ports(2)
    controller = processes.start_controller(num_ps=1, suspect_s=2, port=controller_port, **settings)
    controller.reported("address")  # it listens
    proxy = FaultyProxy(
        ("127.0.0.1", proxy_port), ("127.0.0.1", controller_port), 1, cut=0, delay=0
    )
    processes.start_member("ps", 0, controller=f"127.0.0.1:{proxy_port}")
    return proxy


def test_a_ps_that_is_cut_off_from_its_controller_acknowledges_no_push_after_it_was_replaced(
    processes,
):
    proxy = start_behind_proxy(processes, num_workers=0)
    with connected(processes) as client:
        client.create_tables(TABLE)
        client.push({"t": (IDS, GRADIENTS)})
        proxy.__exit__()
        processes.start_member("ps", 0)
        pushed = 0
        ends_at = time.monotonic() + 60
        while time.monotonic() < ends_at:
            try:
                client.push({"t": (IDS, GRADIENTS)})
                pushed += 1
            except MegalithError:  # the replacement has no such table
                break
        assert time.monotonic() < ends_at, "pushes went on into the ps that was replaced"
        assert pushed > 0
        client.create_tables(TABLE)
        for _ in range(5):
            client.push({"t": (IDS, GRADIENTS)})
        with connected(processes) as other:
            assert value(other) == value(client) == 5.0
        assert client.controller.status().epoch == 2


@pytest.mark.parametrize("bulk_lane", [True, False])
def test_a_push_to_a_ps_that_is_stopped_and_replaced_is_applied_by_its_replacement(
    processes, bulk_lane
):
    processes.start_controller(num_ps=1, num_workers=0, suspect_s=2)
    stopped = processes.start_member("ps", 0)
    with connected(processes, bulk_lane=bulk_lane) as client, connected(processes) as other:
        client.create_tables(TABLE)
        client.push({"t": (IDS, GRADIENTS)})
        outcomes = []

        def push():
            try:
                client.push({"t": (IDS, GRADIENTS)})
                outcomes.append("acknowledged")
            except MegalithError as error:
                outcomes.append(type(error).__name__)

        stopped.signal(signal.SIGSTOP)
        pushing = threading.Thread(target=push)
        pushing.start()
        processes.start_member("ps", 0)
        wait_until(lambda: other.controller.status().epoch == 2, 60, "the ps is replaced")
        other.create_tables(TABLE)
        stopped.signal(signal.SIGCONT)
        pushing.join(60)
        assert outcomes == ["acknowledged"]
        assert value(other) == 1.0
        assert client.writes_unknown == 0


def test_a_job_whose_ps_is_cut_off_and_replaced_trains_the_replacement(processes):
    proxy = start_behind_proxy(processes, num_workers=1)
    processes.start_member("worker", 0, batch_size=64)
    job = processes.job()
    wait_until(lambda: job.status().global_step > 20, 60, "training has begun")
    proxy.__exit__()
    processes.start_member("ps", 0)
    wait_until(lambda: job.status().epoch == 2, 60, "the ps is replaced")

    def rows():
        return next(member.rows for member in job.status().members if member.role == "ps")

    wait_until(lambda: rows() > 0, 60, "the replacement is trained")
    assert job.save().rows > 0


def test_training_goes_on_for_longer_than_a_lease_while_there_is_no_controller(processes):
    controller = processes.start_controller(num_ps=1, num_workers=0)
    processes.start_member("ps", 0)
    with connected(processes) as client:
        client.create_tables(TABLE)
        controller.kill()
        ends_at = time.monotonic() + 8
        pushed = 0
        slowest_s = 0.0
        while time.monotonic() < ends_at:
            began = time.monotonic()
            client.push({"t": (IDS, GRADIENTS)})
            slowest_s = max(slowest_s, time.monotonic() - began)
            pushed += 1
        assert value(client) == pushed
        assert slowest_s < 5
        processes.start_controller(num_ps=1, num_workers=0)
        client.push({"t": (IDS, GRADIENTS)})
        wait_until(
            lambda: client.controller.status().members[0].standing == "alive", 60, "the ps is back"
        )
        client.push({"t": (IDS, GRADIENTS)})
        assert value(client) == pushed + 2
