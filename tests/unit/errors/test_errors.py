import pytest

from megalith.errors import InternalError, MegalithError, all_errors, error_for, some_of
from megalith.wire.status import STATUS_BY_ERROR, status_of


def test_codes_are_unique():
    codes = [error.code for error in all_errors()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_class_says_when_it_happens_and_has_a_status(error):
    assert error.__doc__
    assert error_for(error.code) is error
    assert status_of(error) in STATUS_BY_ERROR.values()


def test_every_class_is_drawn_in_the_tree():
    import megalith.errors as module

    assert [error.__name__ for error in all_errors() if error.__name__ not in module.__doc__] == []


def test_an_unknown_code_is_the_base_class():
    assert error_for("from_the_future") is MegalithError


def test_the_most_specific_class_decides_the_status():
    assert status_of(InternalError).name == "INTERNAL"
    assert status_of(MegalithError).name == "UNKNOWN"


def test_a_list_of_names_in_a_message_ends_after_a_few_with_the_count_of_the_rest():
    assert some_of(["b", "a"]) == "['a', 'b']"
    assert some_of(f"t{number:03}" for number in range(1000)).endswith("'t007'] and 992 more")
