import itertools
import threading
import tracemalloc

import numpy as np
import pytest

from megalith.errors import LimitExceeded, OutcomeLost, Overloaded, SequenceExpired
from megalith.ps.store.remembered_client import ARRAY_BYTES, CLIENT_BYTES, WINDOW
from megalith.ps.store.replay import AppliedPushes, Prepared


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def ready(reply=None, reply_bytes=0, rest=None):
    """A write that can be committed at once."""
    return lambda: Prepared(reply if callable(reply) else lambda: reply, reply_bytes, rest)


def never():
    pytest.fail("applied twice")


def test_a_repeated_push_gets_its_reply_and_is_not_applied():
    applied, calls = AppliedPushes(), []
    assert applied.once("c", 1, ready(lambda: calls.append(1) or "first")) == "first"
    assert applied.once("c", 1, ready(lambda: calls.append(1) or "second")) == "first"
    assert calls == [1]


def test_clients_do_not_share_sequences():
    applied = AppliedPushes()
    assert applied.once("a", 1, ready("a")) == "a"
    assert applied.once("b", 1, ready("b")) == "b"


def test_a_push_that_was_refused_may_be_tried_again():
    applied = AppliedPushes()
    with pytest.raises(ZeroDivisionError):
        applied.once("c", 1, lambda: 1 / 0)
    assert applied.once("c", 1, ready("done")) == "done"


def test_a_push_older_than_the_window_is_refused_not_applied():
    applied = AppliedPushes()
    for sequence in range(1, WINDOW + 3):
        applied.once("c", sequence, ready())
    with pytest.raises(SequenceExpired, match="use a new client id"):
        applied.once("c", 2, ready(never))


def test_a_late_original_within_the_window_is_applied():
    applied = AppliedPushes()
    applied.once("c", 5, ready("five"))
    assert applied.once("c", 4, ready("four")) == "four"


def test_a_retry_that_overtakes_its_original_waits_for_it():
    applied, entered, release, replies = AppliedPushes(), threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        release.wait(30)
        return "once"

    original = threading.Thread(target=lambda: replies.append(applied.once("c", 1, ready(slow))))
    original.start()
    assert entered.wait(30)
    retry = threading.Thread(target=lambda: replies.append(applied.once("c", 1, ready("twice"))))
    retry.start()
    release.set()
    original.join(30)
    retry.join(30)
    assert replies == ["once", "once"]


def test_4096_other_clients_between_a_push_and_its_retry_do_not_make_it_count_twice():
    applied, pushes = AppliedPushes(), []
    applied.once("c", 1, ready(lambda: pushes.append(1)))
    for number in range(4096):
        applied.once(f"other-{number}", 1, ready())
    applied.once("c", 1, ready(lambda: pushes.append(1)), is_repeated=True)
    assert pushes == [1]


def test_a_client_is_remembered_as_long_as_anybody_repeats_a_push_and_then_forgotten(clock):
    applied = AppliedPushes(retention_s=600, clock=clock)
    applied.once("c", 1, ready("reply"))
    clock.now += 600
    applied.once("other", 1, ready())
    assert applied.once("c", 1, ready(never)) == "reply"
    taken = applied.nbytes
    clock.now += 601
    assert taken > applied.nbytes == 0


def test_a_repeated_push_of_a_client_that_was_forgotten_is_not_applied_since_it_may_have_been(
    clock,
):
    applied = AppliedPushes(retention_s=600, clock=clock)
    applied.once("c", 1, ready())
    assert (
        applied.once("new", 1, ready("done"), is_repeated=True) == "done"
    )  # nobody was forgotten: it is the first
    clock.now += 601
    applied.once("other", 1, ready())
    with pytest.raises(OutcomeLost, match="will never be known: this server forgets"):
        applied.once("c", 2, ready(never), is_repeated=True)
    assert applied.once("c", 2, ready("done")) == "done"


def test_when_its_bytes_are_full_a_new_client_comes_later_and_old_ones_are_still_known(clock):
    applied = AppliedPushes(max_bytes=3 * CLIENT_BYTES + 100, retention_s=600, clock=clock)
    for name in "abc":
        applied.once(name, 1, ready(f"reply of {name}"))
    with pytest.raises(
        Overloaded, match=r"no room for another.*--push-memory-bytes.*Nothing was applied"
    ):
        applied.once("d", 1, ready(never))
    assert applied.once("a", 1, ready(never), is_repeated=True) == "reply of a"
    assert applied.once("a", 2, ready("next")) == "next"  # who is known may go on
    clock.now += 601
    assert applied.once("d", 1, ready("done")) == "done"


def test_a_client_whose_push_is_being_applied_is_not_forgotten(clock):
    applied, entered, release, replies = (
        AppliedPushes(retention_s=1, clock=clock),
        threading.Event(),
        threading.Event(),
        [],
    )

    def slow():
        entered.set()
        release.wait(30)
        return "once"

    original = threading.Thread(target=lambda: replies.append(applied.once("c", 1, ready(slow))))
    original.start()
    assert entered.wait(30)
    clock.now += 100
    for number in range(100):
        applied.once(f"other-{number}", 1, ready())
    retry = threading.Thread(target=lambda: replies.append(applied.once("c", 1, ready("twice"))))
    retry.start()
    release.set()
    original.join(30)
    retry.join(30)
    assert replies == ["once", "once"]


def test_replies_are_bounded_in_bytes_and_the_newest_one_is_kept():
    applied = AppliedPushes(max_bytes=100 << 20)
    for client in range(16):
        for sequence in range(1, WINDOW + 1):
            applied.once(f"client-{client}", sequence, ready("big", 1 << 20))
    assert applied.nbytes <= 16 * ((2 << 20) + CLIENT_BYTES + 100)
    assert applied.once("client-0", WINDOW, ready(never)) == "big"
    with pytest.raises(SequenceExpired, match="was applied; its reply is not kept"):
        applied.once("client-0", 1, ready(never))


def test_a_reply_that_finds_no_room_is_refused_before_anything_is_applied():
    applied = AppliedPushes(max_bytes=1 << 20)
    applied.once("c", 1, ready("small", 600_000))
    with pytest.raises(Overloaded, match="Nothing was applied"):
        applied.once("d", 1, ready(never, 600_000))
    assert applied.once("c", 2, ready("next", 600_000)) == "next"  # its own older replies make way


def test_a_push_that_fails_half_way_is_never_applied_again():
    applied, before = AppliedPushes(), AppliedPushes().nbytes

    def fails():
        raise MemoryError("no room")

    with pytest.raises(OutcomeLost, match=r"failed half-way on this server .MemoryError: no room."):
        applied.once("c", 1, ready(fails, 1000))
    with pytest.raises(OutcomeLost, match="push 1 of client c was applied will never be known"):
        applied.once("c", 1, ready(never))
    assert applied.nbytes == before + CLIENT_BYTES + 1
    assert applied.once("c", 2, ready("next")) == "next"


def test_a_refused_first_push_leaves_nothing_behind():
    applied = AppliedPushes()
    with pytest.raises(ZeroDivisionError):
        applied.once("c", 1, lambda: 1 / 0)
    assert applied.nbytes == 0


def test_64_workers_with_replies_of_5_mb_all_go_on_though_not_all_replies_are_kept(clock):
    applied = AppliedPushes(clock=clock)
    for sequence in range(1, 21):
        clock.now += 10
        for worker in range(64):
            write = ready("big", 5 << 20, rest="applied")
            assert applied.once(f"worker-{worker}", sequence, write) == "big"
    assert applied.nbytes <= 256 << 20
    answers = [
        applied.once(f"worker-{worker}", 20, ready(never), is_repeated=True) for worker in range(64)
    ]
    assert set(answers) == {"big", "applied"}


def test_a_reply_that_has_no_rest_takes_the_room_of_those_that_have_one():
    applied = AppliedPushes(max_bytes=1 << 20)
    applied.once("c", 1, ready("big", 600_000, rest="applied"))
    assert applied.once("d", 1, ready("status", 600_000)) == "status"
    assert applied.once("d", 1, ready(never)) == "status"
    assert applied.once("c", 1, ready(never)) == "applied"
    assert applied.nbytes <= 1 << 20


def test_a_reply_that_can_never_be_remembered_is_refused_for_good_unless_it_has_a_rest():
    applied = AppliedPushes(max_bytes=1 << 20)
    with pytest.raises(
        LimitExceeded, match=r"--push-memory-bytes=1048576\. Nothing was applied"
    ) as refused:
        applied.once("c", 1, ready(never, 2 << 20))
    assert not isinstance(refused.value, Overloaded)  # which would be tried again for ever
    assert applied.once("c", 1, ready("huge", 2 << 20, rest="applied")) == "huge"
    assert applied.once("c", 1, ready(never)) == "applied"


@pytest.mark.parametrize("num_arrays", [0, 1, 2, 8])
def test_no_more_memory_is_taken_than_is_counted(num_arrays):
    clients = 50

    def reply(sequence):
        return "push", [np.full(8, sequence) for _ in range(num_arrays)]

    tracemalloc.start()
    try:
        applied = AppliedPushes()
        before = tracemalloc.get_traced_memory()[0]
        for client in range(clients):
            for sequence in range(1000, 1000 + WINDOW):
                write = ready(
                    lambda sequence=sequence: reply(sequence),
                    num_arrays * (64 + ARRAY_BYTES),
                    ("push", None),
                )
                applied.once(f"{client:016x}", sequence, write, (1 << 63) + client)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= applied.nbytes <= 2 * taken


def test_a_new_client_s_first_push_is_applied_though_its_first_try_was_lost_and_others_were_forgotten(
    clock,
):
    applied = AppliedPushes(clock=clock)
    applied.once("old", 1, ready())
    clock.now += 1300
    applied.once("other", 1, ready())
    assert applied.once("new", 1, ready("done"), is_repeated=True, first_try_s_ago=30) == "done"
    with pytest.raises(OutcomeLost, match="this server forgets"):
        applied.once("old", 2, ready(never), is_repeated=True, first_try_s_ago=1300)


def test_replies_that_must_be_kept_leave_room_for_clients_that_are_new(clock):
    applied = AppliedPushes(max_bytes=8 << 20, clock=clock)
    for size in (1 << 20, 100_000):
        for client in itertools.count():
            if applied.nbytes + size + CLIENT_BYTES >= 8 << 20:
                break
            try:
                applied.once(f"{size}-{client}", 1, ready("status", size))
            except Overloaded:
                break
    for worker in range(100):
        write = ready("reply", 50_000, rest="applied")
        assert applied.once(f"worker-{worker}", 1, write) == "reply"
    assert applied.once(f"{1 << 20}-0", 1, ready(never)) == "status"
    assert applied.nbytes <= 8 << 20


def test_bytes_of_replies_that_must_be_kept_are_free_again_once_their_client_is_forgotten(clock):
    applied = AppliedPushes(max_bytes=1 << 20, retention_s=600, clock=clock)
    for _ in range(5):
        assert applied.once("c", 1, ready("status", 700_000)) == "status"
        clock.now += 601
    assert applied.nbytes == 0


# --- the memory of a predecessor ---


def test_a_write_that_reached_the_predecessor_is_lost_unless_its_memory_is_here():
    applied = AppliedPushes()
    with pytest.raises(OutcomeLost, match="has replaced the one that it was sent to"):
        applied.once("c", 1, ready(never), reached_predecessor=True)

    applied.take_over(has_forgotten=False)
    assert applied.once("c", 1, ready("done"), reached_predecessor=True) == "done"
    assert applied.once("c", 1, ready(never), reached_predecessor=True) == "done"


def test_a_late_repetition_is_lost_if_the_predecessor_has_forgotten_clients():
    applied = AppliedPushes(retention_s=100.0)
    applied.take_over(has_forgotten=True)
    with pytest.raises(OutcomeLost, match="forgets a client"):
        applied.once("c", 1, ready(never), is_repeated=True, first_try_s_ago=90.0)
    assert applied.once("c", 1, ready("done"), is_repeated=True, first_try_s_ago=10.0) == "done"
