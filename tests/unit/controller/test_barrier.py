import pytest

from megalith.controller.members.barrier import Barrier, HolderKind
from megalith.errors import BarrierAlreadyPlaced, InvalidRequest


@pytest.mark.golden("Extra.barrier")
def test_a_second_barrier_is_refused_and_the_first_keeps_its_action():
    barrier = Barrier()
    barrier.place("Save")
    with pytest.raises(BarrierAlreadyPlaced):
        barrier.place("Stop")
    assert barrier.state.action == "Save"
    barrier.remove()
    assert barrier.place("Stop").action == "Stop"


def test_each_barrier_has_a_number_of_its_own():
    barrier = Barrier()
    assert barrier.place().id == 1
    barrier.remove()
    barrier.remove()
    assert (barrier.state.id, barrier.state.is_placed) == (1, False)
    assert barrier.place().id == 2


def test_a_restored_barrier_is_placed_as_it_was():
    first, second = Barrier(), Barrier()
    second.restore(first.place("Save"))
    assert second.state == first.state
    assert second.state.is_placed


def test_an_unknown_action_holds_and_is_logged_once(caplog):
    barrier = Barrier()
    for _ in range(3):
        assert barrier.place("Dance").is_placed
        barrier.remove()
    assert caplog.text.count("unknown barrier action 'Dance'") == 1


def test_an_endless_action_is_refused_and_nothing_is_placed():
    barrier = Barrier()
    with pytest.raises(InvalidRequest, match="at most 64 characters"):
        barrier.place("x" * 65)
    assert not barrier.state.is_placed


def test_each_unknown_action_is_logged_once_and_only_so_many_are_remembered(caplog):
    barrier = Barrier()
    for number in range(1_000):
        for _ in range(2):
            barrier.let_go(barrier.place(f"action-{number}").id)
    assert caplog.text.count("unknown barrier action") == 1_000
    assert len(barrier._unknown_actions) <= 64


def test_a_stop_by_file_is_refused_while_an_operator_holds_and_not_the_other_way_round():
    barrier = Barrier()
    barrier.place()
    with pytest.raises(BarrierAlreadyPlaced):
        barrier.place("Stop", kind=HolderKind.ACTION)
    barrier.remove()
    barrier.place("Stop", kind=HolderKind.ACTION)
    assert len(barrier.place().holders) == 2
