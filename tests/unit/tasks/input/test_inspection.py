import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megalith.errors import BadData
from megalith.tasks.input import inspection
from megalith.tasks.input.columns import Label
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.inspection import inspect


@pytest.fixture
def index(tmp_path):
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "user": [f"u{n % 17}" for n in range(1000)],
            "price": [float("nan") if n % 10 == 0 else n / 2 for n in range(1000)],
            "city": [None if n % 4 == 0 else "x" for n in range(1000)],
            "tags": [list(rng.integers(5, size=n % 3)) for n in range(1000)],
            "rating": [n % 5 + 1 for n in range(1000)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    pq.write_table(table, tmp_path / "b.parquet")
    return DataIndex.build([str(tmp_path / "*.parquet")])


def test_columns_are_counted_over_all_files(index):
    found = inspect(index, max_rows=0, label=Label.parse("rating>=4"))
    by_name = {column.name: column for column in found.columns}
    assert (found.num_files, found.num_rows, found.rows_read) == (2, 2000, 2000)
    assert {name: column.distinct for name, column in by_name.items()} == {
        "user": 17,
        "price": 901,  # NaN is one of them
        "city": 1,
        "tags": 5,
        "rating": 5,
    }
    assert by_name["price"].missing == 200
    assert by_name["city"].missing == 500
    assert (by_name["rating"].least, by_name["rating"].greatest) == ("1", "5")
    assert found.label_rate == pytest.approx(0.4)


def test_of_a_part_only_that_part_is_read(index):
    found = inspect(index, max_rows=450, label=None)
    assert (found.rows_read, found.num_rows) == (450, 2000)
    assert found.label_rate is None


def test_counting_stops_where_values_are_too_many(index, monkeypatch):
    monkeypatch.setattr(inspection, "_MOST_DISTINCT", 10)
    users = inspect(index, max_rows=0, label=None).columns[0]
    assert (users.distinct, users.has_more) == (10, True)


def test_a_label_that_is_no_column_is_refused(index):
    with pytest.raises(BadData, match="no column click; there are user, price, city, tags, rating"):
        inspect(index, max_rows=0, label=Label("click"))
