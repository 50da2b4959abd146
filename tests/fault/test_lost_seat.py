"""A ps that lost its seat, and does not know it, acknowledges nothing."""

import signal
import threading
import time

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, connect
from megalith.errors import MegalithError, OutcomeLost, OutcomeUnknown
from megalith.runner.free_ports import free_ports
from support.processes import Processes
from support.proxy import Link
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
    """A controller and its ps-0, whose only way to it is a proxy."""
    controller_port, proxy_port = free_ports(2)
    controller = processes.start_controller(num_ps=1, suspect_s=2, port=controller_port, **settings)
    controller.reported("address")  # it listens
    link = Link(proxy_port, controller_port)
    link.ps = processes.start_member("ps", 0, controller=link.address)
    return link


@pytest.mark.parametrize("lose", [Link.cut, Link.swallow], ids=["cut", "swallow"])
def test_a_ps_that_is_cut_off_from_its_controller_acknowledges_no_push_after_it_was_replaced(
    processes, lose
):
    with start_behind_proxy(processes, num_workers=0) as link, connected(processes) as client:
        client.create_tables(TABLE)
        client.push({"t": (IDS, GRADIENTS)})
        lose(link)
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
        link.mend()
        assert link.ps.wait(60) in (0, 1), "it hears that it was replaced"
        assert value(client) == 5.0


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

        stopped.pause()
        pushing = threading.Thread(target=push)
        pushing.start()
        processes.start_member("ps", 0)
        wait_until(lambda: other.controller.status().epoch == 2, what="the ps is replaced")
        other.create_tables(TABLE)
        stopped.signal(signal.SIGCONT)
        pushing.join(60)
        assert outcomes == ["acknowledged"]
        assert value(other) == 1.0
        assert client.writes_unknown == 0


def is_served(client):
    try:
        client.create_tables(TABLE)
        return value(client) == 1.0
    except MegalithError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("bulk_lane", [True, False])
def test_a_push_that_says_that_there_is_no_controller_is_not_applied_by_a_ps_that_was_stopped(
    processes, bulk_lane
):
    controller_port, link_port = free_ports(2)
    controller = processes.start_controller(
        num_ps=1, num_workers=0, suspect_s=2, port=controller_port
    )
    controller.reported("address")  # it listens
    stopped = processes.start_member("ps", 0)
    with (
        Link(link_port, controller_port) as link,
        connect(link.address, timeout_s=2, bulk_lane=bulk_lane) as client,
        connected(processes) as other,
    ):
        other.create_tables(TABLE)
        other.push({"t": (IDS, GRADIENTS)})
        wait_until(lambda: is_served(client), what="the client knows the map and the table")
        link.cut()
        stopped.pause()
        with pytest.raises(OutcomeUnknown):
            client.push({"t": (IDS, GRADIENTS)})
        with pytest.raises(OutcomeUnknown):  # this try says that there is no controller
            client.wait_for_last_write()
        processes.start_member("ps", 0)
        wait_until(lambda: other.controller.status().epoch == 2, what="the ps is replaced")
        other.create_tables(TABLE)
        stopped.signal(signal.SIGCONT)
        with pytest.raises(OutcomeUnknown):
            client.wait_for_last_write()
        link.mend()

        def is_lost():
            try:
                client.wait_for_last_write()
            except OutcomeLost:
                return True
            except OutcomeUnknown:
                return False
            raise AssertionError("a ps that was replaced has acknowledged it")

        wait_until(is_lost, what="the client knows that the ps was replaced")
        assert client.writes_unknown == 1
        assert value(other) == 0.0


def test_a_job_whose_ps_is_cut_off_and_replaced_trains_the_replacement(processes):
    link = start_behind_proxy(processes, num_workers=1)
    processes.start_member("worker", 0, batch_size=64)
    job = processes.job()
    wait_until(lambda: job.status().global_step > 20, what="training has begun")
    link.cut()
    processes.start_member("ps", 0)
    wait_until(lambda: job.status().epoch == 2, what="the ps is replaced")

    def rows():
        return next(member.rows for member in job.status().members if member.role == "ps")

    wait_until(lambda: rows() > 0, what="the replacement is trained")
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
            lambda: client.controller.status().members[0].standing == "alive", what="the ps is back"
        )
        client.push({"t": (IDS, GRADIENTS)})
        assert value(client) == pushed + 2


def push_for(client, seconds):
    """How many pushes there were, and how long the slowest took."""
    ends_at = time.monotonic() + seconds
    pushed = 0
    slowest_s = 0.0
    while time.monotonic() < ends_at:
        began = time.monotonic()
        client.push({"t": (IDS, GRADIENTS)})
        slowest_s = max(slowest_s, time.monotonic() - began)
        pushed += 1
    return pushed, slowest_s


def test_training_goes_on_while_the_controller_is_stopped_and_the_ps_keeps_its_seat(processes):
    controller = processes.start_controller(num_ps=1, num_workers=0)
    processes.start_member("ps", 0)
    with connected(processes) as client:
        client.create_tables(TABLE)
        controller.pause()
        pushed, slowest_s = push_for(client, 8)  # nobody answers, and no connection ends
        assert value(client) == pushed
        assert slowest_s < 6
        controller.signal(signal.SIGCONT)
        client.push({"t": (IDS, GRADIENTS)})
        assert client.controller.status().epoch == 1
        assert value(client) == pushed + 1


def test_training_goes_on_while_the_controller_is_a_black_hole_and_the_ps_keeps_its_seat(processes):
    with (
        start_behind_proxy(processes, num_workers=0) as link,
        connect(link.address, timeout_s=60) as client,
    ):
        client.create_tables(TABLE)
        link.swallow()
        pushed, slowest_s = push_for(client, 8)  # also new connections get no answer
        assert value(client) == pushed
        assert slowest_s < 6
        link.mend()
        wait_until(
            lambda: client.controller.status().members[0].standing == "alive", 60, "it is back"
        )
        client.push({"t": (IDS, GRADIENTS)})
        assert client.controller.status().epoch == 1
        assert value(client) == pushed + 1


def test_a_ps_that_was_stopped_while_there_is_no_controller_serves_again_a_moment_later(processes):
    controller = processes.start_controller(num_ps=1, num_workers=0)
    server = processes.start_member("ps", 0)
    with connected(processes) as client:
        client.create_tables(TABLE)
        controller.kill()
        before, _ = push_for(client, 5)
        server.pause()
        time.sleep(1.5)  # longer than the pause after which it believes no client
        server.signal(signal.SIGCONT)
        after, slowest_s = push_for(client, 5)
        assert value(client) == before + after
        assert 1.0 < slowest_s < 6
