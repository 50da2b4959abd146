import pytest

from megalith.runtime.rpc.interceptor import bounded_text


def test_a_short_message_is_left_as_it_is():
    assert bounded_text("no table 't'; it has ['u']") == "no table 't'; it has ['u']"


@pytest.mark.parametrize("letter", ["a", "\u00e4", "\u20ac", "\x01"])
def test_a_long_message_fits_the_metadata_of_grpc_however_its_bytes_are_written(letter):
    text = bounded_text(letter * 100_000)
    assert (
        3 * len(text.encode()) < 8192 - 1024
    )  # each byte may take three, and other metadata needs room too
    assert text.endswith(f"... ({len(letter.encode()) * 100_000 - 2000} bytes more)")
