"""Requests under a map that changes meanwhile."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import grpc
import pytest

from megalith.client._transport.exchange import Exchange
from megalith.client._transport.pending_call import PendingCall
from megalith.errors import MegalithError, OutcomeUnknown, PeerUnreachable, ShardNotOwned
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

    def check_session(self):
        pass


class SameMap(Peers):
    def refresh(self, timeout_s=None):
        return self._routing


class Links:
    """`start` says what becomes of each request."""

    def __init__(self, start):
        self.start = start

    def errors_of(self, index, address):
        return nullcontext()


class Counted:
    """Parts of writes that nobody will know about."""

    def __init__(self):
        self.indices = []

    def add(self, index, why):
        self.indices.append(index)


def request_of(**fields):
    fields = {"epoch": 0, "run_id": "", "is_repeated": False, "first_try_ms_ago": 0, **fields}
    return SimpleNamespace(message=SimpleNamespace(**fields))


class Lost:
    def finish(self, deadline):
        raise PeerUnreachable("gone")

    def abandon(self):
        pass


def test_a_call_that_outlives_a_map_with_more_servers_is_a_typed_error_at_once():
    requests = {2: request_of()}
    exchange = Exchange(Peers(), Links(lambda *_: Lost()), requests, 60.0)
    exchange.send()
    with pytest.raises(ShardNotOwned, match="ps-2; the map of epoch 2 has 2 parameter servers"):
        exchange.finish()


class Answered:
    def finish(self, deadline):
        return "answer"

    def abandon(self):
        pass


def test_a_call_that_is_waited_for_before_its_own_thread_has_sent_it_is_sent_once_and_answered():
    sent = []

    def begin(address, request, deadline):
        sent.append(address)
        return Answered()

    requests = {index: request_of() for index in range(3)}
    begun = PendingCall(Exchange(Peers(), Links(begin), requests, 60.0), dict, lambda call: None)
    begun.wait()  # by another thread, which needs room
    begun.send()
    assert begun.result() == {0: "answer", 1: "answer", 2: "answer"}
    assert sent == ["a", "b", "c"]


def test_a_call_that_is_given_up_before_it_is_sent_is_not_sent():
    requests = {0: request_of()}
    exchange = Exchange(Peers(), Links(lambda *_: pytest.fail("sent")), requests, 60.0)
    begun = PendingCall(exchange, dict, lambda call: None)
    begun.abandon(PeerUnreachable("closed"))
    begun.send()
    with pytest.raises(PeerUnreachable, match="closed"):
        begun.result()


def test_a_repeated_write_says_how_long_ago_it_was_first_sent():
    request = request_of()
    tries = [Lost(), Answered()]
    exchange = Exchange(SameMap(), Links(lambda *_: tries.pop(0)), {0: request}, 60.0, Counted())
    exchange.send()
    time.sleep(0.05)
    assert exchange.finish() == {0: "answer"}
    assert request.message.is_repeated
    assert 50 <= request.message.first_try_ms_ago < 30_000


class Replaced(SameMap):
    """The first server has another process after the map was asked for again."""

    def __init__(self):
        self._routing = Routing(1, ("a",), even_owners(1), instances=("first",))

    def refresh(self, timeout_s=None):
        self._routing = Routing(2, ("a",), even_owners(1), instances=("second",))
        return self._routing


def test_the_replacement_of_a_server_is_told_that_a_write_may_have_reached_it_before():
    request = request_of(reached_predecessor=False)
    sent = []
    tries = [Lost(), Answered()]

    def start(address, request, deadline):
        sent.append(request.message.reached_predecessor)
        return tries.pop(0)

    exchange = Exchange(Replaced(), Links(start), {0: request}, 60.0, Counted())
    exchange.send()
    assert exchange.finish() == {0: "answer"}
    assert sent == [False, True]


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


class Broken(Lost):
    def __init__(self, code):
        self._code = code

    def finish(self, deadline):
        raise error_from_rpc(BrokenCall(self._code), "ps-0")


BROKEN = pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])


@BROKEN
def test_a_write_that_the_transport_broke_is_repeated_under_its_number_and_answered(code):
    counted = Counted()
    request = request_of()
    tries = [Broken(code), Answered()]
    exchange = Exchange(SameMap(), Links(lambda *_: tries.pop(0)), {0: request}, 60.0, counted)
    exchange.send()
    assert exchange.finish() == {0: "answer"}
    assert request.message.is_repeated
    assert counted.indices == []


@BROKEN
def test_a_write_that_the_transport_breaks_until_its_deadline_has_an_unknown_outcome(code):
    exchange = Exchange(
        SameMap(), Links(lambda *_: Broken(code)), {0: request_of()}, 0.2, Counted()
    )
    exchange.send()
    with pytest.raises(OutcomeUnknown, match="Stream removed"):
        exchange.finish()
    assert exchange.is_open
    assert exchange.open_parts == [0]


@BROKEN
def test_a_write_that_breaks_for_ever_is_counted_when_it_is_asked_about_again(code):
    counted = Counted()
    exchange = Exchange(SameMap(), Links(lambda *_: Broken(code)), {0: request_of()}, 0.5, counted)
    exchange.send()
    with pytest.raises(OutcomeUnknown):
        exchange.finish()
    for _ in range(20):
        if not exchange.is_open:
            break
        with pytest.raises(MegalithError):
            exchange.finish()
    assert not exchange.is_open
    assert counted.indices == [0]


def test_a_push_is_nobody_s_again_after_who_waited_for_it_was_interrupted():
    class Interrupted(Lost):
        def finish(self, deadline):
            raise KeyboardInterrupt

    request = request_of()
    exchange = Exchange(Peers(), Links(lambda *_: Interrupted()), {0: request}, 60.0, Counted())
    begun = PendingCall(exchange, dict, lambda call: None)
    begun.send()
    with pytest.raises(KeyboardInterrupt):
        begun.result()
    assert exchange.open_parts == [0]
    assert begun.is_unattended  # so that a close that does not wait says and counts it
