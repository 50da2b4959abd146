import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from megalith.cli.app import app
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
    users, prices = inspect(index, max_rows=0, label=None).columns[:2]
    assert (users.distinct, users.has_more) == (10, True)
    assert (prices.least, prices.greatest) == ("0.5", "499.5")  # of all rows all the same


def test_files_with_other_columns_are_said_and_not_read(tmp_path):
    pq.write_table(
        pa.table({"u": pa.array([1, 2], pa.int32()), "c": [1, 0]}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"u": [3.5], "c": [1]}), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("u,more\nx,2\n")
    found = inspect(DataIndex.build([str(tmp_path / "*.*")]), max_rows=0, label=None)
    first = tmp_path / "a.parquet"
    assert found.differences == [
        f"{tmp_path}/c.csv: column u is string, but int32 in {first}",
        f"{tmp_path}/c.csv has no column c, and {first} has it",
        f"{tmp_path}/c.csv has a column more, and {first} has none",
    ]
    assert found.rows_read == 3
    assert [(each.name, each.type, each.distinct) for each in found.columns] == [
        ("u", "double", 3),
        ("c", "int64", 2),
    ]


def test_rows_that_are_not_read_have_their_reason(tmp_path):
    """`--rows 0` was told to give --rows 0, because a file had a column more."""
    pq.write_table(pa.table({"u": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"u": [3], "more": [1]}), tmp_path / "b.parquet")

    def shown(rows):
        told = ["data", "inspect", str(tmp_path / "*.parquet"), "--rows", rows]
        return CliRunner().invoke(app, told).output

    assert "the rows of files with other columns are not read: 1 row\n" in shown("0")
    assert "--rows 0 reads all" not in shown("0")
    assert "of the others, the first 1 were read; --rows 0 reads all" in shown("1")


def inspected(tmp_path, first, second):
    pq.write_table(pa.table({"c": first}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"c": second}), tmp_path / "b.parquet")
    return inspect(DataIndex.build([str(tmp_path / "*.parquet")]), max_rows=0, label=None)


def test_types_that_no_type_holds_are_said(tmp_path):
    found = inspected(tmp_path, [True], [1, 2])
    (line,) = found.differences
    assert line.startswith(f"{tmp_path}/b.parquet: ")
    assert line.endswith("Field c has incompatible types: bool vs int64")
    assert found.rows_read == 1

    found = inspected(tmp_path, pa.array(["x"]).dictionary_encode(), ["y"])
    assert (found.differences, found.rows_read) == ([], 2)

    with pytest.raises(BadData, match=r"a.parquet, row group 0, with the types of all files: "):
        inspected(tmp_path, [2**60 + 1], [1.5])


def test_files_without_a_header_line_are_inspected(tmp_path):
    (tmp_path / "clicks.txt").write_text("1\t5\n0\tx\n")
    told = ["data", "inspect", str(tmp_path / "clicks.txt"), "--header", "c,u", "--label", "c"]
    shown = CliRunner().invoke(app, told)
    assert shown.exit_code == 0, shown.output
    assert "label c: 0.5000 of the rows" in shown.output
    assert "u       string          2" in shown.output

    line = "\t".join(["1", *["5"] * 13, *["1e5"] * 26])
    (tmp_path / "day_0").write_text(f"{line}\n")
    shown = CliRunner().invoke(
        app, ["data", "inspect", str(tmp_path / "day_0"), "--layout", "criteo"]
    )
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("string") == 26


def test_a_label_that_is_no_column_is_refused(index):
    with pytest.raises(BadData, match="no column click; there are user, price, city, tags, rating"):
        inspect(index, max_rows=0, label=Label("click"))


def test_what_python_cannot_show_is_shown_by_arrow(tmp_path):
    """No column ends the look at the others."""
    ends = np.array([0, 1, 2], np.int32)
    not_utf8 = pa.StringArray.from_buffers(2, pa.py_buffer(ends), pa.py_buffer(b"\xfe\xff"))
    columns = {
        "ns": pa.array([1, 2], pa.timestamp("ns")),
        "text": not_utf8,
        "half": pa.array(np.array([1, 2], np.float16)),
        "view": pa.array(["a", "b"], pa.string_view()),
        "long": pa.array([1, 2], pa.duration("s")),
        "x": pa.array([1, 2]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = inspect(DataIndex.build([str(tmp_path / "a.parquet")]), max_rows=0, label=None)
    shown = {column.name: (column.least, column.greatest) for column in found.columns}
    assert shown == {
        "ns": ("1970-01-01 00:00:00.0...", "1970-01-01 00:00:00.0..."),
        "text": (r"b'\xfe'", r"b'\xff'"),
        "half": ("", ""),
        "view": ("", ""),
        "long": ("", ""),
        "x": ("1", "2"),
    }
    assert all(column.distinct == 2 for column in found.columns)


def test_two_columns_of_one_name_are_refused(tmp_path):
    twice = pa.table([[1, 0], [1, 2], [3, 4]], names=["click", "user", "user"])
    pq.write_table(twice, tmp_path / "a.parquet")
    index = DataIndex.build([str(tmp_path / "a.parquet")])
    with pytest.raises(BadData, match=r"a\.parquet has 2 columns user; rename"):
        inspect(index, max_rows=0, label=None)
