"""What members say that this version does not know."""

from megalith.controller import servicer
from megalith.protos.coordination_pb2 import SessionRequest


def test_what_a_member_of_a_newer_version_says_is_ignored_and_said_once(caplog):
    servicer._say_unknown.cache_clear()
    said = servicer.read_said(iter([SessionRequest(), SessionRequest()]))
    assert list(said) == []
    assert caplog.text.count("a member says what this controller does not know") == 1
