import pytest

from megalith.discovery.interface import parse_entry, parse_index


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "\u00b2", "\u0663", "9" * 5000, " 1"])
def test_what_is_no_index_is_told_apart_and_ends_nobody(text):
    assert parse_index(text) is None
    assert parse_entry(f"ps.{text}") is None


def test_an_index_is_read():
    assert (parse_index("0"), parse_index("12"), parse_entry("worker.3")) == (0, 12, ("worker", 3))
