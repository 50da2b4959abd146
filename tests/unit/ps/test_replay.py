import threading

import pytest

from megalith.ps.replay import WINDOW, AppliedPushes
from megalith.wire.errors import SequenceExpired


def test_a_repeated_push_gets_its_reply_and_is_not_applied():
    applied, calls = AppliedPushes(), []
    assert applied.once("c", 1, lambda: calls.append(1) or "first") == "first"
    assert applied.once("c", 1, lambda: calls.append(1) or "second") == "first"
    assert calls == [1]


def test_clients_do_not_share_sequences():
    applied = AppliedPushes()
    assert applied.once("a", 1, lambda: "a") == "a"
    assert applied.once("b", 1, lambda: "b") == "b"


def test_a_push_that_failed_may_be_tried_again():
    applied = AppliedPushes()
    with pytest.raises(ZeroDivisionError):
        applied.once("c", 1, lambda: 1 / 0)
    assert applied.once("c", 1, lambda: "done") == "done"


def test_a_push_older_than_the_window_is_refused_not_applied():
    applied = AppliedPushes()
    for sequence in range(1, WINDOW + 3):
        applied.once("c", sequence, lambda: None)
    with pytest.raises(SequenceExpired, match="use a new client id"):
        applied.once("c", 2, lambda: pytest.fail("applied twice"))


def test_a_late_original_within_the_window_is_applied():
    applied = AppliedPushes()
    applied.once("c", 5, lambda: "five")
    assert applied.once("c", 4, lambda: "four") == "four"


def test_a_retry_that_overtakes_its_original_waits_for_it():
    applied, entered, release, replies = AppliedPushes(), threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        release.wait(30)
        return "once"

    original = threading.Thread(target=lambda: replies.append(applied.once("c", 1, slow)))
    original.start()
    assert entered.wait(30)
    retry = threading.Thread(target=lambda: replies.append(applied.once("c", 1, lambda: "twice")))
    retry.start()
    release.set()
    original.join(30)
    retry.join(30)
    assert replies == ["once", "once"]
