"""What a caller reads of a call that failed."""

import grpc
import pytest

from megalith.errors import PeerUnreachable
from megalith.wire.status import error_from_rpc


class FailedCall(grpc.RpcError, grpc.Call):
    """A call to which only the transport spoke."""

    def __init__(self, details):
        self._details = details

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return self._details

    def trailing_metadata(self):
        return ()

    def add_callback(self, callback): ...
    def cancel(self): ...
    def initial_metadata(self): ...
    def is_active(self): ...
    def time_remaining(self): ...


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
            "Failed to connect to remote host: Connection refused",
            "cannot be reached (Connection refused)",
        ),
        (
            "errors resolving nonsense:7600: [field:hostname lookup error:address lookup failed "
            "for nonsense:7600: Domain name not found]",
            "cannot be reached (Domain name not found)",
        ),
        ("Socket closed", "Socket closed"),
        ("Deadline Exceeded", "no answer in time"),
    ],
)
def test_a_server_that_is_not_reached_is_named_with_the_reason_alone(details, said):
    error = error_from_rpc(FailedCall(details), "controller h:1")
    assert isinstance(error, PeerUnreachable)
    assert str(error) == f"controller h:1: {said}"
    assert not error.is_answer
