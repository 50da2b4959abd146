"""A process whose role has no work: what it waits for, and how it ends."""

import pytest

from megalith.discovery.liveness import Liveness
from megalith.runtime.process.bystander import Bystander
from megalith.runtime.process.lifecycle import ExitRequest
from support.waiting import wait_until


def watched(answers, *, stops_after=None):
    """The exit request, the pauses, and the addresses asked for, once it has ended."""
    left = list(answers)
    pauses, asked = [], []
    exit_request = ExitRequest()

    def probe(addresses, timeout_s):
        asked.append((tuple(addresses), timeout_s))
        return Liveness(tuple(addresses), ()) if left.pop(0) else Liveness((), tuple(addresses))

    def wait(seconds):
        pauses.append(seconds)
        return len(pauses) == stops_after

    bystander = Bystander("w0:22", exit_request, probe=probe, wait=wait)
    bystander.start()
    wait_until(lambda: not bystander._watching.is_alive())
    bystander.stop(0)
    return exit_request, pauses, asked


def test_it_waits_until_worker_0_is_there_and_succeeds_once_it_is_gone():
    exit_request, pauses, asked = watched([False, False, True, True, True, False])
    assert pauses == [5, 5, 10, 10]
    assert set(asked) == {(("w0:22",), 60.0)}
    assert exit_request.reason == "worker-0 w0:22 is gone"
    assert exit_request.status == 0


@pytest.mark.parametrize("answers", [[False, False], [True, True, True]])
def test_it_can_be_stopped_at_any_time(answers):
    exit_request, pauses, _ = watched(answers, stops_after=2)
    assert len(pauses) == 2
    assert exit_request.reason == ""
