"""Requests under a map that changes meanwhile."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import grpc
import pytest

from megalith.client._begun import Begun
from megalith.client._exchange import Exchange
from megalith.wire.errors import MegalithError, PeerUnreachable, ShardNotOwned
from megalith.wire.routing import Routing, even_owners
from megalith.wire.status import error_from_rpc


class Peers:
    """Three servers, of which the controller's next map has two."""

    def __init__(self):
        self._routing = Routing(1, ("a", "b", "c"), even_owners(3))

    def routing(self):
        return self._routing

    def refresh(self, timeout_s=None):
        self._routing = Routing(2, ("a", "b"), even_owners(2))
        return self._routing

    def is_controller_away(self):
        return False

    def errors_of(self, index, address):
        return nullcontext()


class Lost:
    def finish(self, deadline):
        raise PeerUnreachable("gone")

    def abandon(self):
        pass


def test_a_call_that_outlives_a_map_with_more_servers_is_a_typed_error_at_once():
    requests = {2: SimpleNamespace(epoch=0, run_id="")}
    exchange = Exchange(Peers(), lambda address, request, deadline: Lost(), requests, 60.0)
    exchange.send()
    with pytest.raises(ShardNotOwned, match="ps 2; the map of epoch 2 has 2 parameter servers"):
        exchange.finish()


class Answered:
    def finish(self, deadline):
        return "answer"

    def abandon(self):
        pass


def test_a_call_that_is_settled_before_its_own_thread_has_sent_it_is_sent_once_and_answered():
    sent = []

    def begin(address, request, deadline):
        sent.append(address)
        return Answered()

    requests = {index: SimpleNamespace(epoch=0, run_id="") for index in range(3)}
    begun = Begun(Exchange(Peers(), begin, requests, 60.0), dict, lambda call: None)
    begun.settle()  # by another thread, which needs room
    begun.send()
    assert begun.result() == {0: "answer", 1: "answer", 2: "answer"}
    assert sent == ["a", "b", "c"]


def test_a_call_that_is_given_up_before_it_is_sent_is_not_sent():
    requests = {0: SimpleNamespace(epoch=0, run_id="")}
    exchange = Exchange(Peers(), lambda *_: pytest.fail("sent"), requests, 60.0)
    begun = Begun(exchange, dict, lambda call: None)
    begun.abandon(PeerUnreachable("closed"))
    begun.send()
    with pytest.raises(PeerUnreachable, match="closed"):
        begun.result()


def test_a_repeated_write_says_how_long_ago_it_was_first_sent():
    class SameMap(Peers):
        def refresh(self, timeout_s=None):
            return self._routing

    request = SimpleNamespace(epoch=0, run_id="", is_repeated=False, first_try_ms_ago=0)
    tries = [Lost(), Answered()]
    exchange = Exchange(SameMap(), lambda *_: tries.pop(0), {0: request}, 60.0, is_write=True)
    exchange.send()
    time.sleep(0.05)
    assert exchange.finish() == {0: "answer"}
    assert request.is_repeated
    assert 50 <= request.first_try_ms_ago < 30_000


class BrokenCall(grpc.RpcError, grpc.Call):
    """A call that the transport ended: no server's error is in it."""

    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code

    def details(self):
        return "Stream removed"

    def trailing_metadata(self):
        return ()

    initial_metadata = is_active = time_remaining = cancel = add_callback = None


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_write_that_the_transport_broke_may_have_been_applied_and_is_counted(code):
    counted = []

    class Counting(Peers):
        def count_unknown(self, index, why):
            counted.append(index)

    class Broken(Lost):
        def finish(self, deadline):
            raise error_from_rpc(BrokenCall(code), "ps 0")

    request = SimpleNamespace(epoch=0, run_id="")
    exchange = Exchange(Counting(), lambda *_: Broken(), {0: request}, 60.0, is_write=True)
    exchange.send()
    with pytest.raises(MegalithError, match="Stream removed"):
        exchange.finish()
    assert counted == [0]


def test_a_push_is_nobody_s_again_after_who_waited_for_it_was_interrupted():
    class Interrupted(Lost):
        def finish(self, deadline):
            raise KeyboardInterrupt

    request = SimpleNamespace(epoch=0, run_id="")
    exchange = Exchange(Peers(), lambda *_: Interrupted(), {0: request}, 60.0, is_write=True)
    begun = Begun(exchange, dict, lambda call: None)
    begun.send()
    with pytest.raises(KeyboardInterrupt):
        begun.result()
    assert begun.open_parts == [0]
    assert begun.is_unattended  # so that a close that does not wait says and counts it
