"""The data of examples/make_movielens_like.py, smaller."""

import importlib.util
from pathlib import Path

import pyarrow.parquet as pq

_SCRIPT = Path(__file__).parents[2] / "examples" / "make_movielens_like.py"
OPTIONS = {
    "label": "rating>=4",
    "features": "user_id,movie_id,gender,age,occupation,zip_code",
    "lists": "genres,history:movie_id",
    "time": "timestamp",
}


def script():
    spec = importlib.util.spec_from_file_location("make_movielens_like", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder, num_ratings):
    """(ratings to train on, ratings to test) in two files of several row groups."""
    table, _ = script().make(num_ratings)
    train = table.slice(0, num_ratings * 9 // 10)
    test = table.slice(num_ratings * 9 // 10)
    pq.write_table(train, folder / "train.parquet", row_group_size=num_ratings // 12)
    pq.write_table(test, folder / "test.parquet")
    return train, test
