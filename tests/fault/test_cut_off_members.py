"""A member that is cut off from the controller, and from nobody else."""

import re
import time
import urllib.request

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, connect
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


def start_controller(processes, **settings):
    """A controller with one ps index, and a link to it."""
    controller_port, link_port = free_ports(2)
    controller = processes.start_controller(num_ps=1, suspect_s=2, port=controller_port, **settings)
    controller.reported("address")  # it listens
    return Link(link_port, controller_port)


def member(job, role):
    return next(one for one in job.status().members if one.role == role)


def value(cluster):
    return float(cluster.pull({"t": IDS}).rows["t"][0, 0])


def test_a_ps_that_was_replaced_never_gets_its_index_back_with_its_old_rows(processes):
    with (
        start_controller(processes, num_workers=0) as link,
        connect(model_dir=str(processes.model_dir), timeout_s=60) as client,
    ):
        first = processes.start_member("ps", 0, controller=link.address)
        client.create_tables(TABLE)
        client.push({"t": (IDS, GRADIENTS)})
        client.controller.save()
        link.cut()
        second = processes.start_member("ps", 0)
        wait_until(lambda: client.controller.status().epoch == 2, 60, "the ps is replaced")
        for _ in range(50):
            client.push({"t": (IDS, GRADIENTS)})
        assert value(client) == 51.0
        client.controller.save()
        assert first.poll() is None, "it still looks for its controller"

        second.kill()
        link.mend()

        assert first.wait(20) == 1, "a ps that was replaced must be started again"
        assert "was replaced" in first.output()
        processes.start_member("ps", 0)
        wait_until(lambda: client.controller.status().epoch == 3, 60, "the third ps is in the map")
        assert value(client) == 51.0, "the newest checkpoint"


def examples(metrics_address):
    """How many examples a worker has trained, by its own word."""
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=5) as page:
        text = page.read().decode()
    return float(re.search(r"^megalith_examples_total\S* (\S+)", text, re.M).group(1))


def start_training(processes, link):
    """A ps and a worker that has only the link to the controller; the worker, and its metrics."""
    processes.start_member("ps", 0)
    worker = processes.start_member("worker", 0, controller=link.address, batch_size=64)
    job = processes.job()
    wait_until(lambda: job.status().global_step > 20, 60, "training has begun")
    return worker, member(job, "worker").metrics_address


@pytest.mark.parametrize(
    "lose", [Link.cut, pytest.param(Link.swallow, marks=pytest.mark.long)], ids=["cut", "swallow"]
)
def test_a_worker_that_is_cut_off_from_the_controller_trains_nothing_while_training_is_held(
    processes, lose
):
    with (
        start_controller(processes, num_workers=1) as link,
        connect(model_dir=str(processes.model_dir), timeout_s=60) as client,
    ):
        worker, metrics = start_training(processes, link)
        job = client.controller
        lose(link)
        job.stop()
        wait_until(lambda: job.block_status() == ([0], []), 60, "nobody trains")

        before = step_of(client)
        job.save(hold=True)
        time.sleep(2.0)
        assert step_of(client) == before
        assert worker.poll() is None

        link.mend()
        wait_until(lambda: member(job, "worker").is_blocked, 60, "the worker is back")
        held = step_of(client)  # it has ended the steps that it was in
        time.sleep(0.5)
        assert step_of(client) == held
        job.resume()
        wait_until(lambda: step_of(client) > held + 5, 20, "training goes on")
        assert examples(metrics) > 0


def step_of(client):
    return int(client.pull(variables=["global_step"]).variables["global_step"])


def test_a_worker_that_is_cut_off_trains_no_more_beside_its_replacement(processes):
    with start_controller(processes, num_workers=1) as link:
        first, metrics = start_training(processes, link)
        job = processes.job()
        link.cut()
        wait_until(lambda: not member(job, "worker").is_connected, 20, "it is missed")
        cut_off_at = time.monotonic()
        second = processes.start_member("worker", 0, batch_size=64)
        wait_until(lambda: member(job, "worker").pid == second.pid, 20, "it is replaced")
        time.sleep(max(0.0, cut_off_at + 4.0 - time.monotonic()))

        trained = examples(metrics)
        before = member(job, "worker").examples
        wait_until(lambda: member(job, "worker").examples > before, 20, "the replacement trains")
        time.sleep(2.0)
        assert examples(metrics) == trained
        assert first.poll() is None

        link.mend()
        assert first.wait(20) == 1, "its seat is taken"
