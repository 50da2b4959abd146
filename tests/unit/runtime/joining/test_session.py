"""What a member makes of a controller that it does not understand."""

from types import SimpleNamespace

from megalith.protos.coordination_pb2 import SessionResponse
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.joining.session import ControllerSession


def test_what_a_newer_controller_says_is_ignored_and_said_once(caplog):
    session = ControllerSession(MembershipSettings(), SimpleNamespace(), SimpleNamespace())
    for _ in range(3):
        session._dispatch(SessionResponse())
    assert caplog.text.count("the controller says what this process does not know") == 1
