"""Calls in the background of which nobody asks for the outcome."""

import threading

from megalith.client._background import Background


def test_a_push_that_fails_or_is_given_up_is_said_although_nobody_asks(caplog):
    background = Background(4)
    begun, hold = threading.Event(), threading.Event()

    def fail():
        begun.set()
        hold.wait(10)
        raise ValueError("no server")

    background.push(fail)
    begun.wait(10)
    given_up = background.push(lambda: None)
    assert background.close(wait=False) == 2
    hold.set()
    assert given_up.cancelled()
    assert background.close(wait=True) == 0
    said = [record.message for record in caplog.records]
    assert "a push in the background failed: no server" in said
    assert "a push in the background was given up before it was sent" in said
