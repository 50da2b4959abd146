import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.errors import InvalidSetting
from megalith.schema import Part, Sgd, Shampoo, VariableConfig
from megalith.schema.variable_parts import SPLIT_BYTES, num_parts, parts_of
from megalith.wire import routing


@pytest.mark.parametrize(
    ("shape", "num_ps", "count"),
    [
        ((), 4, 1),
        ((32768,), 4, 1),  # 128 KiB stays whole
        ((32769,), 4, 2),  # one row more does not fit into one part
        ((1000, 32), 8, 1),
        ((1025, 32), 8, 2),
        ((100_000, 32), 8, 8),
        ((3, 100_000), 8, 3),  # a row is larger than a part: a part per row
        ((1, 100_000), 8, 1),
        ((100_000, 32), 1, 1),
        ((0, 32), 4, 1),
    ],
)
def test_the_rule_of_cluster_md_1_7(shape, num_ps, count):
    assert num_parts(shape, 4, num_ps) == count


@given(rows=st.integers(1, 10**6), row_bytes=st.integers(1, 10**6), num_ps=st.integers(1, 40))
def test_parts_cover_all_rows_evenly_and_the_longer_ones_come_first(rows, row_bytes, num_ps):
    count = num_parts((rows, row_bytes), 1, num_ps)
    if rows * row_bytes > SPLIT_BYTES:
        assert count == min(num_ps, -(-rows // max(1, SPLIT_BYTES // row_bytes)))
    parts = parts_of(rows, count)
    if count == 1:
        assert parts == [None]
        return
    lengths = [part.stop - part.start for part in parts]
    assert [part.start for part in parts] == [sum(lengths[:place]) for place in range(count)]
    assert sum(lengths) == rows
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize(("index", "count", "rows"), [(0, 1, 5), (2, 2, 5), (-1, 2, 5), (0, 6, 5)])
def test_an_impossible_part_is_refused(index, count, rows):
    with pytest.raises(InvalidSetting, match=f"part {index} of {count}"):
        Part(index, count, rows)


def test_a_part_with_the_wrong_rows_is_refused():
    with pytest.raises(InvalidSetting, match="part 0 of 2 has 2 rows, not 3"):
        VariableConfig("v", np.zeros(2, np.float32), part=Part(0, 2, 5))


def test_shampoo_is_never_split():
    value = np.zeros((600, 100), np.float32)
    assert VariableConfig("v", value, Shampoo()).split(4)[0].part is None
    assert len(VariableConfig("v", value, Sgd()).split(4)) == 2
    with pytest.raises(InvalidSetting, match="does not work on parts"):
        VariableConfig("v", value[:300], Shampoo(), part=Part(0, 2, 600))


def test_parts_go_round_the_servers_from_the_owner_of_the_name():
    current = routing.Routing(1, ("a", "b", "c"), routing.even_owners(3))
    home = current.owner_of_name("v")
    assert [current.owner_of_part("v", index) for index in range(4)] == [
        (home + index) % 3 for index in range(4)
    ]
