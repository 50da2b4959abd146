import pytest

from megalith.controller.members.directives import MeasureOrder, SessionEnd, ShutdownOrder
from megalith.controller.members.roster import Role, Seat
from megalith.controller.members.sessions import Sessions

ORDER = MeasureOrder(1, ("host:1",), 0.5)


@pytest.fixture
def sessions():
    return Sessions()


def test_a_number_is_never_used_again(sessions):
    seat = Seat(Role.PS, 0)
    first = sessions.open(seat, [].append)
    assert sessions.close(first) is seat
    second = sessions.open(seat, [].append)
    assert first != second
    assert (first in sessions, second in sessions, len(sessions)) == (False, True, 1)


def test_closing_twice_or_asking_for_what_is_closed_is_none(sessions):
    session = sessions.open(Seat(Role.WORKER, 0), [].append)
    sessions.close(session)
    assert (sessions.close(session), sessions.seat_of(session)) == (None, None)


def test_one_role_is_told_in_the_order_of_indices(sessions):
    told = []
    opened = {
        (role, index): sessions.open(
            Seat(role, index), lambda item, at=(role, index): told.append((at, item))
        )
        for role, index in [(Role.PS, 2), (Role.WORKER, 0), (Role.PS, 0), (Role.PS, 1)]
    }
    assert sessions.tell(ORDER, Role.PS) == [opened[Role.PS, index] for index in range(3)]
    assert told == [((Role.PS, index), ORDER) for index in range(3)]
    assert sorted(sessions.tell(ORDER)) == sorted(opened.values())


def test_a_place_that_is_handed_over_ends_its_old_sessions_only(sessions):
    kept, ended = [], []
    seat = Seat(Role.PS, 1, address="host:two")
    other = sessions.open(Seat(Role.PS, 0), kept.append)
    sessions.open(seat, ended.append)
    sessions.hand_over(seat)
    assert ended == [ShutdownOrder("ps-1 was taken over by host:two"), SessionEnd()]
    assert (kept, len(sessions), other in sessions) == ([], 1, True)
