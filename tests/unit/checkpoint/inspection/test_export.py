"""Exported files hold every row, value for value, for readers that know nothing of Megalith."""

from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from megalith.checkpoint.inspection.export import ExportFormat, export
from megalith.errors import CheckpointDamaged, InvalidRequest, UnknownTable
from support import at_size, checkpoints
from support.checkpoints import ITEM

IDS = np.arange(100) * 0x0123456789ABCDE
VALUES = np.random.default_rng(1).standard_normal((100, 3)).astype(np.float32)
USER = replace(checkpoints.USER, admission=None, touched_capacity=0)


@pytest.fixture
def checkpoint(tmp_path):
    wide = np.ones((100, 4), np.float32)
    rows = [(ITEM, IDS, VALUES, 1234), (USER, IDS, wide, 1234)]
    return checkpoints.write(checkpoints.stores_with(rows), tmp_path / "model", 120)


def by_id(table):
    return table.sort_by("id")


def test_parquet_has_a_column_for_each_segment(checkpoint, tmp_path):
    written = export(checkpoint, tmp_path / "out", ExportFormat.PARQUET, with_state=True)
    assert written.rows_by_file == {"item.parquet": 100, "user-id.parquet": 100}
    table = by_id(pyarrow.parquet.read_table(tmp_path / "out" / "item.parquet"))
    assert table.column_names == [
        "id",
        "updated_s",
        "segment_0",
        "segment_1",
        "segment_0_norm",
        "segment_0_zero",
        "segment_1_norm",
    ]
    order = np.argsort(IDS)
    np.testing.assert_array_equal(table["id"], IDS[order])
    np.testing.assert_array_equal(table["segment_0"], VALUES[order, 0])
    np.testing.assert_array_equal(
        np.array(table["segment_1"].to_pylist(), np.float32), VALUES[order, 1:]
    )
    assert set(table["updated_s"].to_pylist()) == {1234}
    assert table["segment_1_norm"].to_pylist() == [[0.25, 0.25]] * 100


def test_csv_has_a_column_for_each_float(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out", ExportFormat.CSV, ["item"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["item.csv"]
    table = by_id(pyarrow.csv.read_csv(tmp_path / "out" / "item.csv"))
    assert table.column_names == [
        "id",
        "updated_s",
        "segment_0_0",
        "segment_1_0",
        "segment_1_1",
    ]
    order = np.argsort(IDS)
    np.testing.assert_array_equal(table["id"], IDS[order])
    found = np.stack([table[name].to_numpy() for name in table.column_names[2:]], axis=1)
    np.testing.assert_array_equal(found.astype(np.float32), VALUES[order])


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_300000_rows_come_out_as_they_went_in(tmp_path, order):
    ids = at_size.ids_in(order, 300_000)
    values = np.random.default_rng(2).standard_normal((ids.size, 4)).astype(np.float32)
    stores = checkpoints.stores_with([(USER, ids, values, 9)], num_ps=3)
    export(checkpoints.write(stores, tmp_path, 1), tmp_path / "out", ExportFormat.PARQUET)
    table = pyarrow.parquet.read_table(tmp_path / "out" / "user-id.parquet")
    found = table["segment_0"].combine_chunks().flatten().to_numpy().reshape(-1, 4)
    place = np.argsort(table["id"].to_numpy())
    expected = np.argsort(ids)
    np.testing.assert_array_equal(table["id"].to_numpy()[place], ids[expected])
    np.testing.assert_array_equal(found[place], values[expected])


def test_no_file_is_replaced(checkpoint, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "user-id.csv").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"user-id\.csv is there already"):
        export(checkpoint, out, ExportFormat.CSV)

    assert [path.name for path in out.iterdir()] == ["user-id.csv"]
    assert (out / "user-id.csv").read_text() == "mine"


def test_an_unknown_table_is_refused_with_those_that_exist(checkpoint, tmp_path):
    with pytest.raises(UnknownTable, match="no table 'items'; it has item, user id"):
        export(checkpoint, tmp_path / "out", ExportFormat.CSV, ["items"])


def test_a_damaged_checkpoint_is_not_exported(checkpoint, tmp_path):
    damaged = next(checkpoint.glob("table-*"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=damaged.name):
        export(checkpoint, tmp_path / "out", ExportFormat.PARQUET)

    assert not (tmp_path / "out").exists()
