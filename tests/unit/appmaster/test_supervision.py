import pytest

from megalith.appmaster.supervision import ProcessState, Supervision
from megalith.errors import InvalidRequest, NotFound, NotSupervised, ProcessAlive


@pytest.fixture
def kept():
    return []


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def supervision(kept, clock):
    return Supervision(2, {}, kept.append, clock=lambda: clock[0])


def process(name="worker-0", starts=1, status=None):
    return ProcessState(name, 7, starts, status is None, status or 0)


@pytest.mark.parametrize(
    ("state", "is_restarted"),
    [
        (process(), False),
        (process(status=0), False),
        (process(status=-9), True),
        (process(status=1), True),
        (process(starts=2, status=-9), True),
        (process(starts=3, status=-9), False),
        (process("controller", status=-9), True),
        (process("controller", status=1), False),
    ],
    ids=str,
)
def test_what_died_is_started_again_as_often_as_the_policy_says(supervision, state, is_restarted):
    assert supervision.hear([state, process("ps-0")], is_over=False) == (
        [state.name] if is_restarted else []
    )


def test_a_lost_answer_is_given_again_and_counts_once(supervision):
    for _ in range(5):
        assert supervision.hear([process(status=-9)], is_over=False) == ["worker-0"]
    assert supervision.restarts() == 0
    supervision.hear([process(starts=2)], is_over=False)
    assert supervision.restarts() == 1


def test_nothing_is_started_after_the_end(supervision):
    assert supervision.hear([process(status=-9)], is_over=True) == []


def test_the_policy_may_change_and_is_kept(supervision, kept):
    supervision.max_restarts = 0
    assert supervision.hear([process(status=-9)], is_over=False) == []
    assert kept == [{"max_restarts": 0}]
    assert Supervision(2, kept[0], kept.append).max_restarts == 0
    with pytest.raises(InvalidRequest, match="max_restarts=-1: below 0"):
        supervision.max_restarts = -1


def test_an_operator_s_restart_is_told_until_it_has_happened(supervision):
    supervision.max_restarts = 0
    supervision.hear([process(status=-9)], is_over=False)
    supervision.restart("worker-0")
    for _ in range(2):
        assert supervision.hear([process(status=-9)], is_over=False) == ["worker-0"]
    assert supervision.hear([process(starts=2)], is_over=False) == []
    assert supervision.hear([process(starts=2, status=-9)], is_over=False) == []


def test_what_can_not_be_restarted_is_said(supervision, clock):
    with pytest.raises(NotSupervised):
        supervision.restart("worker-0")
    supervision.hear([process()], is_over=False)
    with pytest.raises(ProcessAlive, match="worker-0 runs as process 7"):
        supervision.restart("worker-0")
    with pytest.raises(NotFound, match="no process 'ps-9'; known are worker-0"):
        supervision.restart("ps-9")
    assert supervision.is_supervised
    clock[0] += 6
    assert not supervision.is_supervised
    with pytest.raises(NotSupervised):
        supervision.restart("worker-0")


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ([process("")], "a process name of 0 characters"),
        ([process("x" * 200)], "a process name of 200 characters"),
        ([process(), process()], "process worker-0 occurs 2 times"),
        ([process(starts=0)], "starts=0"),
        ([ProcessState("ps-0", -1, 1, True)], "pid=-1"),
    ],
)
def test_a_malformed_heart_beat_is_refused_and_changes_nothing(supervision, report, message):
    supervision.hear([process("ps-0")], is_over=False)
    with pytest.raises(InvalidRequest, match=message):
        supervision.hear([process("other"), *report], is_over=False)
    assert [each.name for each in supervision.processes()] == ["ps-0"]


def test_an_end_is_to_be_told_until_the_supervisor_has_heard_of_it(supervision, clock):
    assert not supervision.is_end_to_be_told  # nobody supervises
    supervision.hear([process()], is_over=False)
    clock[0] += 6.0  # late, as beside a controller that hangs
    assert supervision.is_end_to_be_told
    supervision.hear([process()], is_over=True)
    assert not supervision.is_end_to_be_told
