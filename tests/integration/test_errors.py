"""Every error class leaves a server and arrives at a client as itself."""

import logging
import threading

import grpc
import pytest

from megalith import errors
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.rpc.interceptor import ErrorInterceptor
from megalith.runtime.rpc.server import RpcServer, ServerSettings
from megalith.wire.channel import open_channel
from megalith.wire.status import status_of, translated
from support.waiting import wait_until


@pytest.fixture(scope="module")
def metrics():
    return Metrics()


@pytest.fixture(scope="module")
def address(metrics):
    """A server whose one method raises the error class whose code it is sent, or something
    unforeseen."""

    def fail(request, context):
        known = {error.code: error for error in errors.all_errors()}
        raise known.get(request.decode(), ZeroDivisionError)("id 7 is wrong; do this instead")

    def stream(requests, context):
        yield b"first"
        for request in requests:
            fail(request, context)

    handlers = {
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    service = grpc.method_handlers_generic_handler("test.Errors", handlers)
    server = RpcServer(
        ServerSettings(), metrics, {"x": lambda server: server.add_generic_rpc_handlers((service,))}
    )
    server.start()
    yield server.address
    server.stop(0)


@pytest.mark.parametrize("error", errors.all_errors(), ids=lambda error: error.__name__)
def test_an_error_survives_the_round_trip_as_itself(address, error):
    with open_channel(address) as channel:
        with (
            pytest.raises(error, match="id 7 is wrong; do this instead") as raised,
            translated("peer"),
        ):
            channel.unary_unary("/test.Errors/Fail")(error.code.encode(), timeout=30)
        assert type(raised.value) is error
        assert raised.value.__cause__.code() is status_of(error)


def test_an_error_in_a_stream_arrives_after_what_was_sent(address):
    with open_channel(address) as channel:
        replies = channel.stream_stream("/test.Errors/Stream")(iter([b"stale_epoch"]), timeout=30)
        assert next(replies) == b"first"
        with pytest.raises(errors.StaleEpoch), translated("peer"):
            next(replies)


def test_the_unforeseen_is_internal_with_plain_words_and_a_logged_traceback(address, caplog):
    with (
        caplog.at_level(logging.ERROR),
        open_channel(address) as channel,
        pytest.raises(errors.InternalError, match="failed unexpectedly") as raised,
        translated("peer"),
    ):
        channel.unary_unary("/test.Errors/Fail")(b"surprise", timeout=30)
    assert "id 7" not in str(raised.value)
    assert "ZeroDivisionError" in caplog.text


def test_outcomes_are_counted_by_code(address, metrics):
    with open_channel(address) as channel, pytest.raises(errors.NotReady), translated("peer"):
        channel.unary_unary("/test.Errors/Fail")(b"not_ready", timeout=30)
    labels = {"method": "/test.Errors/Fail", "code": "not_ready"}
    assert metrics.registry.get_sample_value("megalith_rpc_total", labels) >= 1


def test_what_only_the_transport_says_names_the_peer():
    unreachable = pytest.raises(errors.PeerUnreachable, match=r"^ps-3: ")
    with open_channel("127.0.0.1:1") as channel, unreachable, translated("ps-3"):
        channel.unary_unary("/test.Errors/Fail")(b"", timeout=30)


@pytest.mark.parametrize("how", ["call", "future", "stream"])
def test_a_channel_that_another_thread_closed_is_a_peer_to_be_found_again(address, how):
    channel = open_channel(address)
    fail, stream = (
        channel.unary_unary("/test.Errors/Fail"),
        channel.stream_stream("/test.Errors/Stream"),
    )
    channel.close()
    begin = {"call": fail, "future": fail.future, "stream": stream}[how]
    with (
        pytest.raises(errors.PeerUnreachable, match=r"^ps-3: the channel was closed"),
        translated("ps-3"),
    ):
        begin(iter(()) if how == "stream" else b"", timeout=30)


def test_another_value_error_stays_what_it_is():
    with pytest.raises(ValueError, match=r"^not ours$"), translated("ps-3"):
        raise ValueError("not ours")


def test_a_caller_that_goes_between_two_answers_is_counted(metrics):
    """gRPC asks the method for no further answer then."""
    interceptor = ErrorInterceptor(metrics, None, 1.0, 1.0)  # no message is waited for
    answer = interceptor._stream("/test.Errors/Two", lambda requests, context: iter([1, 2]))
    answers = answer(iter(()), None)
    assert next(answers) == 1
    answers.close()
    assert metrics.rpc_total.labels("/test.Errors/Two", "cancelled")._value.get() == 1


def test_a_caller_that_goes_before_its_first_message_is_no_fault_of_the_server(
    address, metrics, caplog
):
    silence = threading.Event()

    def nothing():
        silence.wait(60)
        yield from ()

    # For gRPC the requests may end before the caller is gone
    codes = ("cancelled", "ok")
    counters = [metrics.rpc_total.labels("/test.Errors/Stream", code) for code in codes]

    def ended():
        return sum(counter._value.get() for counter in counters)

    before = ended()
    with open_channel(address) as channel:
        call = channel.stream_stream("/test.Errors/Stream")(nothing())
        assert next(call) == b"first"
        call.cancel()
        wait_until(lambda: ended() == before + 1)
        silence.set()

    assert "unforeseen" not in caplog.text
