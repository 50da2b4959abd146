import numpy as np
import pytest

from megalith.tasks import click_kernels, clicks
from megalith.tasks.clicks import ClicksTask, draw_batch


def test_the_seed_and_the_number_decide_the_batch():
    first, again, other = draw_batch(1, 5, 100), draw_batch(1, 5, 100), draw_batch(2, 5, 100)
    np.testing.assert_array_equal(first.ids["user"], again.ids["user"])
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.ids["user"] != other.ids["user"]).any()
    assert (first.ids["user"] != draw_batch(1, 6, 100).ids["user"]).any()


def test_ids_carry_their_slot_and_popularity_falls_with_rank():
    batch = draw_batch(1, 0, 50_000)
    for feature in clicks.COLUMNS:
        assert (batch.ids[feature.name] >> 48 == feature.slot).all()
    _, counts = np.unique(batch.ids["user"], return_counts=True)
    counts = np.sort(counts)[::-1]
    assert counts[0] > 50 * counts[200]
    assert (counts == 1).sum() > 1000


def test_there_are_a_few_million_possible_ids():
    assert sum(feature.num_ids for feature in clicks.COLUMNS) > 3_000_000


def test_labels_follow_the_truth():
    batch = draw_batch(1, 0, 100_000)
    likely = batch.truth > 1.0
    expected = (1 / (1 + np.exp(-batch.truth[likely]))).mean()
    assert abs(batch.labels[likely].mean() - expected) < 0.01


def test_gradients_match_finite_differences():
    task = ClicksTask(batch_size=16, num_examples=16, seed=3)
    batch = task.batch(0)
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((16, clicks.DIM)).astype(np.float32) for name in batch.ids}
    variables = {config.name: config.initial + 0.1 for config in task.variables}
    taught = task.gradients(batch, rows, variables)

    def mean_loss():
        return task.gradients(batch, rows, variables).loss

    def slope(array, place, step=1e-2):
        array[place] += step
        above = mean_loss()
        array[place] -= 2 * step
        below = mean_loss()
        array[place] += step
        return (above - below) / (2 * step)

    for name in ("readout", "dense", "bias"):
        place = (1, 2) if name == "readout" else (0,)
        assert taught.variables[name][place] == pytest.approx(
            slope(variables[name], place), abs=2e-3
        )
    assert taught.rows["item"][3, 4] / 16 == pytest.approx(slope(rows["item"], (3, 4)), abs=2e-3)


def test_the_best_auc_is_that_of_the_truth():
    task = ClicksTask(batch_size=16, num_examples=16, seed=3)
    effects = {}

    def read(ids, names):
        # A model that knows the truth: the first coordinate holds the effect, read out by one.
        for feature in clicks.COLUMNS:
            rows = np.zeros((ids[feature.name].size, clicks.DIM), np.float32)
            rows[:, 0] = [click_kernels.effect(id_, feature._spread) for id_ in ids[feature.name]]
            effects[feature.name] = rows
        readout = np.zeros((len(clicks.COLUMNS), clicks.DIM), np.float32)
        readout[:, 0] = 1
        return effects, {
            "readout": readout,
            "dense": clicks._DENSE_EFFECTS,
            "bias": np.array([clicks._BIAS]),
        }

    results = task.evaluate(read)
    assert results["auc"] == pytest.approx(results["best_auc"], abs=1e-4)
