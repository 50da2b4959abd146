import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.errors import MalformedArray
from megalith.wire import arrays


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_ids_survive_the_round_trip(ids):
    decoded = arrays.decode_ids(arrays.encode(np.array(ids, np.int64)), "ids")
    assert decoded.tolist() == ids


@pytest.mark.parametrize("length", [1, 7, 9, 15])
def test_ids_of_a_length_not_a_multiple_of_8_are_refused_with_the_length(length):
    with pytest.raises(MalformedArray, match=rf"table t: {length} bytes is not a multiple of 8"):
        arrays.decode_ids(b"x" * length, "table t")


def test_bytes_are_little_endian():
    assert arrays.encode(np.array([1], np.int64)) == b"\x01" + b"\x00" * 7


@pytest.mark.parametrize(("size", "shape"), [(15, (2, 2)), (16, (2, 3)), (16, (-2, -2)), (4, ())])
def test_bytes_that_do_not_fit_the_shape_are_refused(size, shape):
    if shape == () and size == 4:
        assert arrays.decode(b"\x00" * 4, arrays.VALUE, (), "x").shape == ()
        return
    with pytest.raises(MalformedArray, match=f"{size} bytes"):
        arrays.decode(b"\x00" * size, arrays.VALUE, shape, "x")
