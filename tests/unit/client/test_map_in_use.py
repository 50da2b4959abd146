"""Which map the SDK uses, and what it says of the controller."""

import pytest

from megalith.client._transport.links import Links
from megalith.client._transport.map_in_use import MapInUse
from megalith.errors import DeadlinePassed, NotReady, Overloaded, PeerUnreachable, RunUndecided
from megalith.wire.routing import Routing, even_owners


class FakeController:
    """Has a map of `epoch`; None = it does not answer."""

    def __init__(self):
        self.epoch = 1
        self.error = None
        self.asked = 0

    def routing(self, timeout_s=None, run_id=""):
        return self.routing_now(1.0, run_id)

    def routing_now(self, timeout_s, run_id):
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.epoch is None:
            raise PeerUnreachable("nobody")
        return Routing(self.epoch, ("a",), even_owners(1), "r")


@pytest.fixture
def controller():
    return FakeController()


@pytest.fixture
def servers(controller):
    return MapInUse(controller, Links(1 << 20))


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
    monkeypatch.setattr(
        "megalith.client._transport.map_in_use.time.monotonic", lambda: float("inf")
    )
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


def test_who_lost_its_session_with_a_controller_that_answers_sends_nothing(servers, controller):
    is_in_session = True
    servers.follow_session(lambda: is_in_session)
    servers.routing()
    servers.check_session()
    is_in_session = False
    controller.epoch = 2
    assert servers.routing().epoch == 2, "it asks before each request"
    with pytest.raises(NotReady, match="another process may have its seat"):
        servers.check_session()
    assert not servers.is_controller_away()


def test_who_lost_its_session_and_reaches_no_controller_says_so(servers, controller):
    is_in_session = True
    servers.follow_session(lambda: is_in_session)
    servers.routing()
    controller.epoch = None
    servers.refresh()
    assert not servers.is_controller_away(), "who is in session knows that it is there"
    is_in_session = False
    servers.check_session()
    assert servers.is_controller_away()


@pytest.mark.parametrize("error", [NotReady("forming"), Overloaded("busy")])
def test_a_controller_that_answers_without_a_map_is_not_away(servers, controller, error):
    servers.routing()
    controller.error = DeadlinePassed("no answer")
    servers.refresh()
    assert servers.is_controller_away()
    controller.error = error
    assert servers.refresh().epoch == 1
    assert not servers.is_controller_away()


def test_a_controller_that_does_not_know_whether_the_run_goes_on_is_as_good_as_away(
    servers, controller
):
    servers.routing()
    controller.error = RunUndecided("which run?")
    servers.refresh()
    assert servers.is_controller_away()
