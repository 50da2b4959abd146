"""The no-code task on real servers: two workers train one model, which is saved and goes on."""

import json

import numpy as np
import pyarrow.compute as pc
import pytest

from support import movielens_like
from support.servers import Servers
from support.waiting import wait_until

NUM_RATINGS = 24_000


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ratings")
    return folder, *movielens_like.write(folder, NUM_RATINGS)


def run(model_dir, folder, num_workers=2, num_ps=2, **options):
    told = {
        **movielens_like.OPTIONS,
        "data": str(folder / "train.parquet"),
        "eval_data": str(folder / "test.parquet"),
        "num_tracks": num_workers,
        **options,
    }
    with Servers(model_dir, num_ps=num_ps, num_workers=num_workers) as servers:
        servers.start_all(task="ctr", batch_size=500, task_options=json.dumps(told))
        cluster = servers.connect()
        status = wait_until(lambda: (status := cluster.controller.status()).outcome and status, 100)
        rows = {name: stats.rows for name, stats in cluster.table_stats().items()}
        return status, rows


def test_two_workers_train_one_model_of_every_value_in_the_data(ratings, tmp_path):
    folder, train, _ = ratings
    status, rows = run(tmp_path, folder, model="deepfm", group_by="gender")
    assert status.outcome == "succeeded"
    assert sum(member.examples for member in status.members) == train.num_rows

    def distinct(name):
        return set(pc.unique(train.column(name)).to_pylist())

    for name in ("user_id", "gender", "age", "occupation", "zip_code"):
        assert rows[name] == len(distinct(name)), name
    movies = distinct("movie_id") | set(
        pc.unique(pc.list_flatten(train.column("history"))).to_pylist()
    )
    assert rows["movie_id"] == len(movies)
    assert rows["genres"] == 18

    results = status.results
    assert {"auc", "log_loss", "calibration", "auc gender=F", "auc gender=M"} == results.keys()
    assert results["auc"] > 0.6
    assert 0.8 < results["calibration"] < 1.2


def test_a_job_that_is_started_again_has_the_same_model_and_goes_on_with_its_data(
    ratings, tmp_path
):
    folder, train, _ = ratings
    first, _ = run(tmp_path, folder, model="deepfm")

    # All its data is trained: what is evaluated is what was saved, rows and layers.
    same, _ = run(tmp_path, folder, model="deepfm", num_ps=1)
    assert sum(member.examples for member in same.members) == 0
    assert same.results == pytest.approx(first.results, rel=1e-6)

    more, _ = run(tmp_path, folder, model="deepfm", epochs=2)
    assert more.global_step == 2 * first.global_step
    assert sum(member.examples for member in more.members) == train.num_rows


def test_rows_expire_by_the_time_of_their_examples(ratings, tmp_path):
    """A user whose last rating is older than the days that rows are kept has no row any more."""
    folder, train, _ = ratings
    days = 60
    told = {**movielens_like.OPTIONS, "data": str(folder / "train.parquet"), "model": "lr"}
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        options = json.dumps({**told, "expire_days": days})
        servers.start_all(task="ctr", batch_size=1, num_examples=2000, task_options=options)
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.status().outcome, 100)
        dropped = cluster.expire()["user_id"]

    trained = train.slice(0, 2000)
    users = np.array(trained.column("user_id"))
    times = np.array(trained.column("timestamp"))
    last = {user: time for user, time in zip(users, times, strict=True)}
    old = [user for user, time in last.items() if times[-1] - time > days * 86_400]
    assert 0 < len(old) == dropped


def test_a_damaged_file_ends_the_job_with_its_name(ratings, tmp_path):
    folder, _, _ = ratings
    broken = tmp_path / "broken.parquet"
    content = bytearray((folder / "train.parquet").read_bytes())
    content[len(content) // 3 : len(content) // 3 + 2000] = bytes(2000)
    broken.write_bytes(content)
    with Servers(tmp_path / "model", num_ps=1, num_workers=1) as servers:
        told = {**movielens_like.OPTIONS, "data": str(broken), "model": "lr"}
        servers.start_all(task="ctr", batch_size=500, task_options=json.dumps(told))
        exit_request = servers.exits["worker-0"]
        wait_until(lambda: exit_request.reason, 60)
        assert "broken.parquet, row group" in exit_request.reason
