"""Which map the SDK uses, and what it says of the controller."""

import pytest

from megalith.client._servers import Servers
from megalith.wire.errors import PeerUnreachable
from megalith.wire.routing import Routing, even_owners


class FakeController:
    """Has a map of `epoch`; None = it does not answer."""

    def __init__(self):
        self.epoch = 1
        self.asked = 0

    def routing(self, timeout_s=None, run_id=""):
        return self.routing_now(1.0, run_id)

    def routing_now(self, timeout_s, run_id):
        self.asked += 1
        if self.epoch is None:
            raise PeerUnreachable("nobody")
        return Routing(self.epoch, ("a",), even_owners(1), "r")


@pytest.fixture
def controller():
    return FakeController()


@pytest.fixture
def servers(controller):
    return Servers(controller, 1 << 20, 1 << 20, 4)


def test_a_map_that_is_known_to_be_out_of_date_is_asked_for_before_the_next_request(
    servers, controller
):
    assert servers.routing().epoch == 1
    controller.epoch = 2
    assert servers.routing().epoch == 1
    servers.expect_epoch(2)
    assert servers.routing().epoch == 2
    assert servers.routing().epoch == 2
    assert controller.asked == 2


def test_without_a_controller_the_map_stays_and_requests_say_so_until_it_answers(
    servers, controller, monkeypatch
):
    servers.routing()
    assert not servers.is_controller_away()
    controller.epoch = None
    assert servers.refresh().epoch == 1
    assert servers.is_controller_away()
    monkeypatch.setattr("megalith.client._servers.time.monotonic", lambda: float("inf"))
    assert not servers.is_controller_away(), "it must be asked again first"
    controller.epoch = 2
    assert servers.routing().epoch == 2
    assert not servers.is_controller_away()


def test_a_map_that_is_known_to_be_out_of_date_is_not_used_when_no_controller_answers(
    servers, controller
):
    servers.routing()
    controller.epoch = None
    servers.expect_epoch(2)
    with pytest.raises(PeerUnreachable):
        servers.routing()
