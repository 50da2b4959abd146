"""Which values of a column get a row, by how many batches have them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import megalith.client as mg
from megalith.local import local_train
from megalith.tasks.ctr import make_task

# `one` is in one batch of four examples, `two` in two batches, and so on; none is in the last one.
BATCHES = (
    ("one", "two", "three", "four"),
    ("two", "three", "four", "four"),
    ("three", "four", "-", "-"),
    ("four", "-", "-", "-"),
    ("-", "-", "-", "-"),
)


@pytest.mark.parametrize(
    ("min_count", "known"),
    [
        (1, ["one", "two", "three", "four"]),
        (2, ["two", "three", "four"]),
        (3, ["three", "four"]),
        (5, []),
    ],
)
def test_a_value_gets_its_row_with_the_batch_that_makes_the_count_full(tmp_path, min_count, known):
    values = [value for batch in BATCHES for value in batch]
    table = pa.table({"click": [0, 1] * (len(values) // 2), "word": values})
    pq.write_table(table, tmp_path / "words.parquet")
    task = make_task(
        batch_size=4,
        num_examples=0,
        seed=1,
        data=str(tmp_path / "words.parquet"),
        label="click",
        features="word",
        model="lr",
        shuffle="no",
        min_count=min_count,
    )

    run = local_train(task)
    words = ["one", "two", "three", "four"]
    rows, _ = run.read({"word": mg.hash_ids(words)}, [])
    has_row = [word for word, row in zip(words, rows["word"], strict=True) if row.any()]
    assert has_row == known
