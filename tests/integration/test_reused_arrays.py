"""Readers that fill the same arrays for every batch."""

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import ShapeMismatch

BATCHES = 30
EXAMPLES = 12
IDS = 40


def features_of(cluster, name, *more):
    slices = (mg.Slice("all", 2, optimizer=mg.Sgd(1.0)),)
    return cluster.create_features(*(mg.Feature(each, slices) for each in (name, *more)))


def lists_of(number):
    """Ids and row splits of a batch; the lengths change from batch to batch."""
    random = np.random.default_rng(number)
    splits = np.sort(random.integers(0, IDS + 1, EXAMPLES + 1))
    splits[0], splits[-1] = 0, IDS
    return random.integers(0, 25, IDS), splits


def expected_rows(ids):
    """Batch k has a gradient of k + 1 for each use of an id, which Sgd(1.0) takes away."""
    rows = np.zeros(25, np.float32)
    for number in range(BATCHES):
        np.add.at(rows, ids(number), -(number + 1))
    return rows


def trained_rows(cluster, name):
    return cluster.pull({name: np.arange(25)}).rows[name]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_gradients_reach_the_right_rows_when_a_generator_fills_the_same_arrays(
    cluster, name, depth
):
    model = features_of(cluster, name)
    values = np.empty(IDS, np.int64)
    splits = np.empty(EXAMPLES + 1, np.int64)

    def batches():
        for number in range(BATCHES):
            values[:], splits[:] = lists_of(number)
            yield number

    for number, batch in model.prefetch(
        batches(), lambda _: {name: mg.Ragged(values, splits)}, depth=depth
    ):
        model.apply(batch, {name: np.full((EXAMPLES, 2), number + 1, np.float32)})
    expected = expected_rows(lambda number: lists_of(number)[0])
    np.testing.assert_array_equal(trained_rows(cluster, name), np.repeat(expected[:, None], 2, 1))


def test_one_ragged_object_over_arrays_that_change_is_read_anew_at_each_lookup(cluster, name):
    model = features_of(cluster, name)
    values, splits = lists_of(0)
    ragged = mg.Ragged(values, splits)
    looked = []
    for number in range(BATCHES):
        values[:], splits[:] = lists_of(number)
        looked.append(model.lookup({name: ragged}))
    for number, batch in enumerate(looked):
        model.apply(batch, {name: np.full((EXAMPLES, 2), number + 1, np.float32)})
    expected = expected_rows(lambda number: lists_of(number)[0])
    np.testing.assert_array_equal(trained_rows(cluster, name), np.repeat(expected[:, None], 2, 1))


def test_row_splits_that_were_spoilt_after_they_were_checked_are_refused_at_the_lookup(
    cluster, name
):
    model = features_of(cluster, name)
    values, splits = lists_of(0)
    ragged = mg.Ragged(values, splits)
    splits[-1] = 10 * IDS
    with pytest.raises(ShapeMismatch, match=f"end at {10 * IDS}"):
        model.lookup({name: ragged})


@pytest.mark.parametrize("kind", ["matrix", "tensor", "nested"])
def test_matrices_and_tensors_that_are_filled_again_train_the_right_rows(cluster, name, kind):
    torch = pytest.importorskip("torch", reason="needs: pip install torch==2.13.0")
    from megalith.torch import ClusterEmbedding

    embedding = ClusterEmbedding(
        features_of(cluster, f"{name}-ids", f"{name}-others"), pushes_behind=2
    )
    matrix = np.empty((EXAMPLES, 3), np.int64)
    tensor = torch.from_numpy(matrix)

    def matrix_of(number):
        return np.random.default_rng(number).integers(0, 25, (EXAMPLES, 3))

    def batches():
        for number in range(BATCHES):
            matrix[:] = matrix_of(number)
            yield number

    def ids(_):
        if kind == "nested":
            offsets = torch.arange(EXAMPLES + 1) * 3
            given = torch.nested.nested_tensor_from_jagged(tensor.reshape(-1), offsets)
        else:
            given = matrix if kind == "matrix" else tensor
        return {f"{name}-ids": given, f"{name}-others": [7] * EXAMPLES}

    for number, batch in embedding.prefetch(batches(), ids, depth=2):
        (embedding(batch)[f"{name}-ids"].sum() * (number + 1)).backward()
    embedding.flush()
    expected = expected_rows(lambda number: matrix_of(number).reshape(-1))
    np.testing.assert_array_equal(
        trained_rows(cluster, f"{name}-ids"), np.repeat(expected[:, None], 2, 1)
    )


def test_ids_of_a_begun_pull_are_those_of_the_call(cluster, name):
    cluster.create_tables(mg.TableConfig(name, (mg.Segment(1),)))
    cluster.assign_rows({name: (np.arange(100), np.arange(100, dtype=np.float32)[:, None])})
    ids = np.empty(10, np.int64)
    futures = []
    for first in range(0, 50, 10):
        ids[:] = np.arange(first, first + 10)
        futures.append(cluster.begin_pull({name: ids}))
    for first, future in zip(range(0, 50, 10), futures, strict=True):
        np.testing.assert_array_equal(
            future.result().rows[name][:, 0], np.arange(first, first + 10)
        )
