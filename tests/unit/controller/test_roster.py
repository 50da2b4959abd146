import pytest

from megalith.controller.roster import PsLoad, Registration, Role, Roster
from megalith.wire.errors import IndexTaken, NotInCluster


def registration(role=Role.PS, index=0, incarnation="one", **changes):
    return Registration(role, index, f"host:{incarnation}", incarnation=incarnation, **changes)


@pytest.fixture
def roster():
    return Roster(num_ps=2, num_workers=1, taken_silence_s=3.0)


def test_a_live_holder_keeps_its_index(roster):
    roster.take(registration(), now=0.0)
    with pytest.raises(IndexTaken, match="ps 0 is held by a live process at host:one"):
        roster.take(registration(incarnation="two"), now=1.0)


def test_a_silent_or_lost_holder_is_replaced(roster):
    place = roster.take(registration(), now=0.0)
    place.load = PsLoad(is_ready=True)
    assert roster.take(registration(incarnation="two"), now=4.0).address == "host:two"
    assert not place.load.is_ready
    place.is_connected = False
    assert roster.take(registration(incarnation="three"), now=4.1).address == "host:three"


def test_silence_is_measured_in_the_holder_s_own_heartbeats(roster):
    roster.take(registration(heartbeat_s=5.0), now=0.0)
    with pytest.raises(IndexTaken):
        roster.take(registration(incarnation="two"), now=14.0)
    assert roster.take(registration(incarnation="two"), now=16.0).address == "host:two"


def test_the_same_process_may_come_back_at_once(roster):
    place = roster.take(registration(), now=0.0)
    place.load = PsLoad(is_ready=True)
    roster.take(registration(), now=0.1)
    assert place.load.is_ready


@pytest.mark.parametrize(
    ("role", "index", "way_out"), [(Role.PS, 2, "--num-ps=3"), (Role.WORKER, 5, "--num-workers=6")]
)
def test_an_index_outside_the_cluster_is_refused_with_the_way_out(roster, role, index, way_out):
    with pytest.raises(NotInCluster, match=f"{role} index {index} .*{way_out}"):
        roster.take(registration(role, index), now=0.0)


def test_another_number_of_ps_is_refused(roster):
    with pytest.raises(NotInCluster, match="expects 3 ps, this cluster has 2"):
        roster.take(registration(num_ps=3), now=0.0)
    roster.take(registration(num_ps=2), now=0.0)
