import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from megalith.cli.cluster.waiting import WaitingLines, complaint, failure_in

LOG = """2026-11-17T03:43:48.5Z INFO    worker-0 megalith.worker.server: worker listening address=127.0.0.1:3
2026-11-17T03:43:58.5Z WARNING worker-0 megalith.runtime.joining.membership: trying again: no ZooKeeper answers at [::1]:1
2026-11-17T03:43:59.5Z INFO    worker-0 megalith.worker.server: something else
"""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def screen():
    return io.StringIO()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines(screen, clock):
    return WaitingLines(Console(file=screen, width=300), 5.0, clock)


def member(role, index, is_connected):
    return SimpleNamespace(name=f"{role}-{index}", is_connected=is_connected)


def process(name, log):
    return SimpleNamespace(name=name, logged=lambda: log)


def test_nothing_is_said_of_a_quick_start_and_then_one_line_every_few_seconds(lines, clock, screen):
    for second in range(13):
        clock.now = float(second)
        lines.tell("the controller to come up")
    assert screen.getvalue() == "waiting for the controller to come up\n" * 2


def test_a_line_names_who_is_missing_and_what_the_first_of_them_complains_of(lines, clock, screen):
    clock.now = 6.0
    status = SimpleNamespace(
        members=[member("ps", 0, True), member("ps", 1, False), member("worker", 0, False)],
        last_checkpoint="",
    )
    processes = [
        process(name, log) for name, log in (("ps-0", LOG), ("ps-1", ""), ("worker-0", LOG))
    ]
    lines.tell_of(status, processes)
    assert screen.getvalue() == (
        "waiting for ps-1, worker-0; worker-0 says: trying again: no ZooKeeper answers at [::1]:1\n"
    )


def test_with_everybody_here_the_parameter_servers_are_waited_for(lines, clock, screen):
    clock.now = 6.0
    lines.tell_of(SimpleNamespace(members=[member("ps", 0, True)], last_checkpoint=""), [])
    assert screen.getvalue() == (
        "waiting for parameter servers to get ready (the first ones on a machine compile their kernels)\n"
    )


def test_a_log_without_warnings_complains_of_nothing():
    assert complaint(LOG.replace("WARNING", "INFO   ")) == ""


def test_a_process_failed_for_its_last_error_and_not_for_what_it_gave_up_then():
    log = LOG + (
        "2026-11-17T03:44:01.5Z ERROR   worker-0 megalith.runtime.process.lifecycle: worker-0 stops: a bug\n"
        "2026-11-17T03:44:02.5Z WARNING worker-0 megalith.client: gave up 1 pushes\n"
    )
    assert failure_in(log) == "worker-0 stops: a bug"
    assert failure_in(LOG) == "trying again: no ZooKeeper answers at [::1]:1"


def test_a_restore_is_not_taken_for_compiling(lines, clock, screen):
    clock.now = 6.0
    status = SimpleNamespace(members=[member("ps", 0, True)], last_checkpoint="/m/model.ckpt-7")
    lines.tell_of(status, [])
    assert screen.getvalue() == "waiting for parameter servers to restore /m/model.ckpt-7\n"
