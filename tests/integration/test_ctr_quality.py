"""How good the models of `megalith train ctr` become on data whose best AUC is known."""

from collections import deque

import pytest

from megalith.local import local_train
from megalith.local.model import LocalModel
from megalith.tasks.ctr import make_task
from support import criteo_like, movielens_like

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FEATURES = "user_id,movie_id,gender,age,occupation"


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """The whole data set of docs/own-data.md, and the best AUC that any model can reach on it."""
    folder = tmp_path_factory.mktemp("ratings")
    script = movielens_like.script()
    script.main(str(folder))
    table, probability = script.make(script.NUM_RATINGS)
    num_train = table.num_rows * 9 // 10
    is_liked = table.slice(num_train).column("rating").to_numpy() >= 4
    return folder, script.auc(is_liked, probability[num_train:])


def reached(folder, model):
    """The AUC with the default options, in one process."""
    options = {
        **movielens_like.OPTIONS,
        "features": FEATURES,
        "data": str(folder / "train-*.parquet"),
        "eval_data": str(folder / "test.parquet"),
        "model": model,
    }
    task = make_task(batch_size=1024, num_examples=0, seed=1, **options)
    return local_train(task, batch_size=1024).figures["auc"]


def test_deepfm_comes_within_a_hundredth_of_the_best_and_far_above_the_linear_model(ratings):
    folder, best = ratings
    deepfm = reached(folder, "deepfm")
    assert best - 0.01 <= deepfm <= best
    assert deepfm >= reached(folder, "lr") + 0.13


def test_the_cross_network_does_too(ratings):
    folder, best = ratings
    assert best - 0.01 <= reached(folder, "dcn") <= best


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    criteo_like.script().main(str(folder))
    return folder


def reached_with_late_pushes(folder, model, **told):
    """The AUC if no step sees the pushes of the five steps before it.

    So late is a push at most with two workers and the default staleness: two of its own, and the
    three that the other worker has begun.
    """
    options = {
        "layout": "criteo",
        "data": str(folder / "train-*.tsv"),
        "eval_data": str(folder / "test.tsv"),
        "model": model,
    }
    task = make_task(batch_size=1024, num_examples=0, seed=1, **options, **told)
    variable_names = [variable.name for variable in task.variables]
    trained = LocalModel()
    trained.create(task.tables, task.variables)

    late = deque()
    for number in range(task.num_batches()):
        batch = task.batch(number)
        ids = task.ids(batch)
        rows, variables = trained.read(ids, variable_names)
        found = task.gradients(batch, rows, variables)
        by_row = {table: (ids[table], gradient) for table, gradient in found.rows.items()}
        late.append((by_row, found.variables, number))
        if len(late) > 5:
            by_row, by_variable, step = late.popleft()
            trained.push(by_row, by_variable, req_time_s=0, step=step)

    auc = task.evaluate(trained.read)["auc"]
    trained.close()
    return auc


def test_models_with_products_beat_the_linear_one_on_many_columns_with_late_pushes(clicks):
    linear = reached_with_late_pushes(clicks, "lr")
    assert reached_with_late_pushes(clicks, "fm") >= linear + 0.005
    assert reached_with_late_pushes(clicks, "deepfm") >= linear + 0.005
    assert reached_with_late_pushes(clicks, "dcn") >= linear + 0.005

    assert reached_with_late_pushes(clicks, "fm", warmup_steps=0) < linear
