"""Text without a header line, and the layout of Criteo's logs."""

import numpy as np
import pyarrow as pa
import pytest

from megalith.client import hash_ids
from megalith.errors import BadData, InvalidSetting
from megalith.tasks.ctr_options import CtrOptions, names
from megalith.tasks.input.blocks import index_file, read_block, schema_of
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.index import DataIndex
from support import criteo_like


def dataset(path, **told):
    options = CtrOptions(data=str(path), layout="criteo", **told)
    index = DataIndex.build([str(path)], header=names(options.header))
    return options, Dataset(
        index, options.columns(), batch_size=1000, text_columns=tuple(names(options.text))
    )


@pytest.mark.parametrize("name", ["day_0", "train.txt", "train.tsv"])
def test_the_first_line_of_a_headless_file_is_an_example(tmp_path, name):
    (tmp_path / name).write_text("1\tx\n0\ty\n")
    file = index_file(str(tmp_path / name), ["label", "word"])
    table = read_block(file, 0, schema_of(file))
    assert table.to_pylist() == [{"label": 1, "word": "x"}, {"label": 0, "word": "y"}]
    saved = DataIndex((file,)).save_in(tmp_path)
    assert DataIndex.load(saved).files == (file,)


def test_a_line_with_another_number_of_columns_is_named(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tx\n0\n")
    file = index_file(str(tmp_path / "a.tsv"), ["label", "word"])
    with pytest.raises(BadData, match=r"a.tsv.*Expected 2 columns, got 1"):
        schema_of(file)


def test_criteo_logs_are_read_as_they_were_written(tmp_path):
    criteo_like.script().write(tmp_path / "day_0", 5000, np.random.default_rng(1))
    _, data = dataset(tmp_path / "day_0")
    assert data.schema.field("cat_3").type == pa.string()
    assert data.batches_per_epoch == 5

    lines = [line.split("\t") for line in (tmp_path / "day_0").read_text().splitlines()]
    examples = data.batch(0).examples
    assert examples.labels.tolist() == [float(line[0]) for line in lines[:1000]]
    assert examples.dense.shape == (1000, 13)
    for row in (0, 1, 500, 999):
        expected = [np.log1p(float(text)) if text else np.nan for text in lines[row][1:14]]
        np.testing.assert_allclose(examples.dense[row], expected, rtol=1e-6)
        for number in range(26):
            ids = examples.ids[f"cat_{number + 1}"]
            found = ids.values[ids.row_splits[row] : ids.row_splits[row + 1]].tolist()
            text = lines[row][14 + number]
            assert found == (hash_ids([text]).tolist() if text else [])
    assert examples.missing.sum() > 0


def test_what_is_told_goes_before_the_layout():
    options = CtrOptions(data="day_*", layout="criteo", features="cat_1,cat_2", dense="int_1")
    assert [column.column for column in options.columns().ids] == ["cat_1", "cat_2"]
    assert len(options.columns().dense) == 1
    assert options.label == "label"
    with pytest.raises(InvalidSetting, match="layout"):
        CtrOptions(data="day_*", layout="avazu")
