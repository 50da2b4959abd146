"""Files as blocks: what is read is what was written, and what is wrong is said by name."""

import csv
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megalith.errors import BadData
from megalith.tasks.input import blocks
from megalith.tasks.input.blocks import index_file, read_block, schema_of
from megalith.tasks.input.files import found_files
from megalith.tasks.input.index import DataIndex


def read_all(path, **options):
    file = index_file(str(path))
    schema = schema_of(file, **options)
    tables = [read_block(file, number, schema) for number in range(len(file.rows))]
    return pa.concat_tables(tables)


def test_text_of_many_blocks_is_read_as_it_was_written(tmp_path, monkeypatch):
    """Quoted commas, quotes and line breaks, at block borders too."""
    monkeypatch.setattr(blocks, "_TEXT_BLOCK_BYTES", 4096)
    rng = np.random.default_rng(1)
    words = ["plain", 'a, "b"\nc', '"', "x" * 300, "\n\n", "end"]
    rows = [(number, words[rng.integers(len(words))], number % 2) for number in range(5000)]
    path = tmp_path / "x.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "word", "click"])
        writer.writerows(rows)

    table = read_all(path)
    assert len(index_file(str(path)).rows) > 50
    assert table.column("id").to_pylist() == [row[0] for row in rows]
    assert table.column("word").to_pylist() == [row[1] for row in rows]


def test_tsv_has_no_quotes_and_the_last_line_needs_no_end(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(b'id\tword\n1\tsay "hi\n2\t"\n3\tlast')
    assert read_all(path).column("word").to_pylist() == ['say "hi', '"', "last"]


def test_a_column_stays_text_if_told_to(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("zip,click\n01234,1\n00001,0\n")
    assert read_all(path).column("zip").to_pylist() == [1234, 1]
    assert read_all(path, text_columns=["zip"]).column("zip").to_pylist() == ["01234", "00001"]


def test_text_that_is_no_number_in_a_later_block_is_refused_with_its_column(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_TEXT_BLOCK_BYTES", 64)
    path = tmp_path / "x.csv"
    path.write_text("item,click\n" + "5,1\n" * 100 + "shoe,0\n")
    with pytest.raises(BadData, match=r"x.csv, block \d+ cannot be read: .*shoe"):
        read_all(path)


def test_parquet_is_read_by_row_groups(tmp_path):
    table = pa.table({"id": np.arange(1000), "click": np.ones(1000)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=300)
    file = index_file(str(tmp_path / "x.parquet"))
    assert file.rows == (300, 300, 300, 100)
    assert read_all(tmp_path / "x.parquet").equals(table)


@pytest.mark.parametrize("name", ["x.parquet", "x.csv"])
def test_an_empty_file_is_refused_by_name(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(BadData, match=f"{name} is empty"):
        index_file(str(tmp_path / name))


def test_a_file_that_is_no_parquet_is_refused_by_name(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(BadData, match=r"x\.parquet cannot be read"):
        index_file(str(tmp_path / "x.parquet"))


def test_a_damaged_row_group_is_refused_by_name(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"id": np.random.default_rng(1).integers(1 << 40, size=20_000)})
    pq.write_table(table, path, row_group_size=10_000, use_dictionary=False, compression="zstd")
    content = bytearray(path.read_bytes())
    middle = len(content) * 3 // 4
    content[middle : middle + 500] = bytes(500)
    path.write_bytes(content)
    file = index_file(str(path))
    with pytest.raises(BadData, match=r"x\.parquet, row group 1 cannot be read"):
        read_block(file, 1, schema_of(file))


def test_a_file_that_grows_or_vanishes_after_it_was_counted_is_not_read(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,click\n1,0\n2,1\n")
    file = index_file(str(path))
    schema = schema_of(file)
    with open(path, "a") as more:
        more.write("3,1\n")
    with pytest.raises(BadData, match=r"x\.csv has changed since its rows were counted: 17 bytes"):
        read_block(file, 0, schema)

    os.remove(path)
    with pytest.raises(BadData, match=r"x\.csv, block 0: the file is gone"):
        read_block(file, 0, schema)


def test_files_are_found_by_wildcards_and_each_once(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("id\n1\n")
    (tmp_path / "folder").mkdir()
    everything = [str(tmp_path / "*.csv"), str(tmp_path / "a.csv")]
    assert found_files(everything) == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with pytest.raises(BadData, match="there is no such file"):
        found_files([str(tmp_path / "*.tsv")])
    with pytest.raises(BadData, match="is a folder; name its files"):
        found_files([str(tmp_path)])
    with pytest.raises(
        BadData, match=r"c.txt: the name ends in '.txt'; files that are read end in"
    ):
        DataIndex.build([str(tmp_path / "c.txt")])


def test_an_index_comes_back_as_it_was_saved(tmp_path):
    (tmp_path / "x.csv").write_text("id,click\n1,0\n2,1\n")
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "y.parquet", row_group_size=2)
    index = DataIndex.build([str(tmp_path / "x.csv"), str(tmp_path / "y.parquet")])
    assert DataIndex.load(index.save_in(tmp_path)) == index
    assert index.num_rows == 5
    assert [block.num_rows for block in index.blocks] == [2, 2, 1]


def test_data_without_rows_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("id,click\n")
    with pytest.raises(BadData, match="1 file, and no row in any of them"):
        DataIndex.build([str(tmp_path / "x.csv")])


def test_a_quote_inside_a_value_of_csv_is_explained(tmp_path):
    path = tmp_path / "tv.csv"
    path.write_text('click,size\n1,5" tv\n0,6" tv\n')
    file = index_file(str(path))
    with pytest.raises(BadData, match=r"tv.csv, block 0: 2 rows, but 1 were counted; is there a q"):
        read_block(file, 0, schema_of(file))


def test_a_quote_that_nothing_closes_does_not_make_a_block_of_the_rest(tmp_path, monkeypatch):
    """It would be read into memory at once, however large the file is."""
    monkeypatch.setattr(blocks, "_TEXT_BLOCK_BYTES", 64)
    monkeypatch.setattr(blocks, "_LONGEST_LINE_BYTES", 1000)
    good = "".join(f"{n},nail\n" for n in range(50))
    head = "id,name\n"
    longest = "1," + "x" * 900 + "\n"
    path = tmp_path / "x.csv"
    path.write_text(head + good + longest + good)
    assert sum(index_file(str(path)).rows) == 101

    path.write_text(f'{head}{good}50,5" nail\n' + good * 10)
    begins = f"{len(head + good):,}"
    with pytest.raises(
        BadData, match=rf"x\.csv: a line of more .* at byte {begins}; is there a quote"
    ):
        index_file(str(path))


def test_text_that_is_not_utf8_is_refused_where_it_is_read(tmp_path):
    """As bytes its empty fields would be values, and its lists could not be split."""
    path = tmp_path / "x.csv"
    path.write_bytes("click,name,more\n1,caf\u00e9,\n0,,5\n".encode("latin-1"))
    file = index_file(str(path))
    schema = schema_of(file)
    assert schema.field("name").type == pa.string()
    with pytest.raises(BadData, match=r"x\.csv, block 0 cannot be read: In CSV column #1: .* UTF8"):
        read_block(file, 0, schema)

    others = pa.schema([schema.field("click"), schema.field("more")])
    assert read_block(file, 0, others).column("more").to_pylist() == [None, 5]

    path.write_text("click,name\n1,a\n", encoding="utf-16")
    with pytest.raises(BadData, match=r"x\.csv cannot be read: 'utf-8' codec"):
        schema_of(index_file(str(path)))


@pytest.mark.parametrize("ending", ["parquet", "tsv", "log", "csv"])
def test_names_of_columns_are_for_text_alone(tmp_path, ending):
    """A model that is trained on text without a header line is scored on Parquet too."""
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"click": [1, 0], "user": [5, 6]}), path)
    else:
        separator = "," if ending == "csv" else "\t"
        path.write_text(f"1{separator}5\n0{separator}6\n")

    file = index_file(str(path), ["click", "user"])
    table = read_block(file, 0, schema_of(file))
    assert table.to_pydict() == {"click": [1, 0], "user": [5, 6]}
