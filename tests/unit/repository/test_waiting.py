"""What ends a test hangs no longer than its limit, and says where."""

import threading

import pytest

from support.waiting import ended


def test_what_ends_gives_its_result_or_its_error():
    assert ended(lambda: 7, "a sum") == 7
    with pytest.raises(TimeoutError, match="of its own"):
        ended(lambda: (_ for _ in ()).throw(TimeoutError("of its own")), "a call")


def test_what_hangs_is_named_with_the_line_at_which_it_stands():
    go_on = threading.Event()

    def stand_still():
        go_on.wait(30)

    try:
        with pytest.raises(AssertionError, match="ps-0 stops") as raised:
            ended(stand_still, "ps-0 stops", 0.1)
    finally:
        go_on.set()
    assert "in stand_still" in str(raised.value)
