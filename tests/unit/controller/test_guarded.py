import pytest

from megalith.controller.guarded import guarded


def test_a_look_that_fails_is_logged_once_while_it_says_the_same_and_is_not_the_last(caplog):
    failures = [
        ZeroDivisionError("a"),
        ZeroDivisionError("a"),
        ZeroDivisionError("b"),
        None,
        ZeroDivisionError("b"),
    ]
    looks = []

    def look():
        looks.append(1)
        if error := failures[len(looks) - 1]:
            raise error

    again = guarded("looking", look)
    for _ in failures:
        again()
    assert len(looks) == len(failures)
    assert [record.message for record in caplog.records] == ["looking failed, trying again"] * 3
    assert all(record.exc_info for record in caplog.records)


def test_an_end_is_no_failure():
    with pytest.raises(SystemExit):
        guarded("looking", exit)()
