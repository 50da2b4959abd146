"""Input that the controller hands out, on real servers: no example is lost, none is trained twice."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from megalith.client import Feature, Slice
from megalith.schema import Sgd, Zeros
from megalith.tasks.feature_task import FeatureBatch, FeatureTask, StepOutput
from megalith.worker.hooks import Hook
from support import movielens_like
from support.servers import Servers
from support.waiting import wait_until

NUM_RATINGS = 6_000
NUM_BATCHES = 60
BATCH_SIZE = 10


def outcome_of(servers):
    controller = servers.connect().controller
    return wait_until(lambda: (status := controller.status()).outcome and status, 100)


def train_ratings(model_dir, folder, **options):
    told = {
        "data": str(folder / "train-*.csv"),
        "eval_data": str(folder / "test.csv"),
        "label": "rating>=4",
        "features": "user_id,movie_id",
        "model": "lr",
        **options,
    }
    with Servers(model_dir, num_ps=1, num_workers=2) as servers:
        servers.start_all(
            task="ctr", batch_size=100, sharding="dynamic", task_options=json.dumps(told)
        )
        return outcome_of(servers)


@pytest.fixture
def ratings(tmp_path):
    """Four files, each of which is one piece."""
    train, test = movielens_like.write(tmp_path, NUM_RATINGS)
    names = ["user_id", "movie_id", "rating"]
    pa.csv.write_csv(test.select(names), tmp_path / "test.csv")
    columns = train.select(names)
    num_rows = 1_000
    for number in range(4):
        part = columns.slice(number * num_rows, num_rows)
        pa.csv.write_csv(part, tmp_path / f"train-{number}.csv")

    return tmp_path, 4 * num_rows


def test_a_job_of_handed_out_files_trains_each_row_once_and_goes_on_from_its_checkpoint(
    ratings, tmp_path
):
    folder, num_rows = ratings
    model_dir = tmp_path / "model"
    first = train_ratings(model_dir, folder)
    assert first.outcome == "succeeded"
    assert sum(member.examples for member in first.members) == num_rows
    assert (first.pieces.total, first.pieces.done, first.pieces.returned) == (4, 4, 0)
    assert 0.5 < first.results["auc"] < 1.0

    same = train_ratings(model_dir, folder)
    assert sum(member.examples for member in same.members) == 0
    assert same.results == pytest.approx(first.results, rel=1e-6)

    more = train_ratings(model_dir, folder, epochs=2)
    assert sum(member.examples for member in more.members) == num_rows
    assert (more.pieces.total, more.pieces.done) == (8, 8)


class StopsOne(Hook):
    """Ends the share of worker `index` after its second step."""

    def __init__(self, index):
        self._index = index
        self._steps = 0

    def after_step(self, worker, done):
        self._steps += 1
        if worker.index == self._index and self._steps == 2:
            worker.request_stop("two steps are enough")


class Counted(FeatureTask):
    """Each time that example n is trained, its row grows by 1."""

    features = (Feature("n", (Slice("count", 1, Zeros(), Sgd(1.0)),)),)

    def __init__(self, stops, **told):
        self.hooks = (StopsOne(stops),)

    def num_batches(self):
        return NUM_BATCHES

    def batch(self, number):
        start = number * BATCH_SIZE
        ids = np.arange(start, start + BATCH_SIZE)
        return FeatureBatch({"n": ids}, np.zeros(BATCH_SIZE, np.float32))

    def step(self, batch, layouts, variables):
        return StepOutput(0.5, {"n": -np.ones_like(layouts["n"])})


@pytest.mark.parametrize("stopped", [0, 1])
def test_others_train_the_pieces_of_a_worker_whose_share_a_hook_ends(tmp_path, stopped):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        servers.start_all(
            task=f"{__file__}:Counted",
            sharding="dynamic",
            task_options=json.dumps({"stops": stopped}),
        )
        status = outcome_of(servers)
        ids = np.arange(NUM_BATCHES * BATCH_SIZE)
        counts = servers.connect().pull({"n": ids}).rows["n"]

    assert status.outcome == "succeeded"
    assert status.pieces.done == NUM_BATCHES
    np.testing.assert_array_equal(counts, np.ones((len(ids), 1), np.float32))
