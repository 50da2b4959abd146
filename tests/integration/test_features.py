"""Features through the SDK, against two real parameter servers."""

import threading

import numpy as np
import pytest

from megalith.client import (
    V2,
    Adagrad,
    Constants,
    Feature,
    FirstN,
    Ftrl,
    Layout,
    PolynomialDecay,
    Segment,
    Sgd,
    Slice,
    TableConfig,
    Zeros,
    errors,
)

SGD = (Slice("v", 2, Zeros(), Sgd(1.0)),)


@pytest.mark.golden("DistributedPsTest.partitioned_layout")
def test_merged_features_train_with_ftrl_and_adagrad_in_one_table(cluster):
    """Features uid [1,4], gid and cid [1,4,8]; one update with gradient 2 from value 3."""
    row = (
        Slice("bias", 1, Constants(3.0), Ftrl(1.0, beta=0.0)),
        Slice("vec", 2, Constants(3.0), Adagrad(1.0)),
    )
    wide = (row[0], Slice("vec", 3, Constants(3.0), Adagrad(1.0)))
    uid, gid, cid = (
        Feature("uid", row, slot=1),
        Feature("gid", wide, slot=2),
        Feature("cid", wide, slot=3),
    )
    model = cluster.create_features(
        uid, gid, cid, layouts={name: Layout.concat(name) for name in ("uid", "gid", "cid")}
    )
    assert model.table_by_feature == {
        "uid": "9871d3a2c554b27151cacf1422eec048",
        "gid": "c4a398dea30b21551ae4c09454001dba",
        "cid": "c4a398dea30b21551ae4c09454001dba",
    }
    ids = {"uid": [uid.fids([1, 4])], "gid": [gid.fids([1, 4, 8])], "cid": [cid.fids([1, 4, 8])]}
    batch = model.lookup(ids)
    model.apply(batch, {name: np.full(batch[name].shape, 2, np.float32) for name in ids})
    for feature in (uid, gid, cid):
        rows = cluster.pull({model.table_by_feature[feature.name]: feature.fids([1, 4])}).rows
        for row in rows[model.table_by_feature[feature.name]]:
            np.testing.assert_allclose(row, [1.5437491] + [2.0122704] * (len(row) - 1), rtol=1e-6)


@pytest.mark.golden("DistributedPsTest.learning_rate_function")
def test_a_feature_s_schedule_gives_the_rate_of_the_step(cluster):
    """Polynomial 1 -> 2 over 10 steps, upstream 2."""
    schedule = PolynomialDecay(1.0, 10, end_learning_rate=2.0)
    model = cluster.create_features(
        Feature("scheduled", (Slice("v", 1, Zeros(), Sgd(), schedule=schedule),))
    )
    for step, expected in enumerate((-2, -4.2)):
        batch = model.lookup({"scheduled": [0, 1]})
        model.apply(batch, {"scheduled": np.full((2, 1), 2, np.float32)}, step=step)
        np.testing.assert_allclose(
            model.lookup({"scheduled": [0, 1]})["scheduled"], [[expected]] * 2, rtol=1e-6
        )


@pytest.mark.golden("DistributedPsTest.multi_table")
def test_features_of_two_widths_are_trained_in_one_update(cluster):
    """Tables of width 1 and 2, a gradient of a half."""
    features = [
        Feature(name, (Slice("v", dim, Zeros(), Sgd(1.0)),)) for name, dim in (("m1", 1), ("m2", 2))
    ]
    model = cluster.create_features(*features)
    batch = model.lookup({"m1": [[1], [2, 2]], "m2": [[], [1, 1, 1]]})
    model.apply(
        batch, {"m1": np.full((2, 1), 0.5, np.float32), "m2": np.full((2, 2), 0.5, np.float32)}
    )
    after = cluster.pull({"m1": [1, 2], "m2": [1]}).rows
    assert (after["m1"].tolist(), after["m2"].tolist()) == ([[-0.5], [-1]], [[-1.5, -1.5]])


def test_sequences_share_the_rows_of_the_feature_they_name(cluster):
    item = Feature("item", SGD, slot=7)
    history = Feature("history", SGD, slot=7, combiner=FirstN(2), table="item")
    model = cluster.create_features(item, history)
    fids = item.fids([1, 2, 3])
    batch = model.lookup({"item": fids[:1], "history": [fids]})
    model.apply(
        batch, {"item": -np.ones((1, 2), np.float32), "history": -np.ones((1, 2, 2), np.float32)}
    )
    assert cluster.pull({"item": fids}).rows["item"].tolist() == [[2, 2], [1, 1], [0, 0]]


def test_thresholds_hold_for_their_own_feature_only(cluster):
    strict, open_ = (
        Feature("strict", SGD, slot=11, occurrence_threshold=1),
        Feature("open", SGD, slot=12),
    )
    model = cluster.create_features(strict, open_)
    assert len(model.tables) == 1
    ids = {"strict": strict.fids([5]), "open": open_.fids([5])}
    for expected in ({"strict": 0, "open": -1}, {"strict": -1, "open": -2}):
        batch = model.lookup(ids)
        model.apply(batch, {name: np.ones((1, 2), np.float32) for name in ids})
        after = model.lookup(ids)
        assert {name: after[name][0, 0] for name in ids} == expected


def test_a_feature_whose_table_exists_with_other_slices_is_refused(cluster):
    cluster.create_tables(TableConfig("taken", (Segment(3),)))
    with pytest.raises(errors.TableConflict):
        cluster.create_features(Feature("x", SGD, table="taken"))


def test_gradients_that_are_not_finite_change_nothing(cluster):
    model = cluster.create_features(Feature("finite", SGD))
    batch = model.lookup({"finite": [1, 2]})
    with pytest.raises(errors.NonFiniteValue):
        model.apply(batch, {"finite": np.array([[1, 1], [np.nan, 1]], np.float32)})
    assert not model.lookup({"finite": [1, 2]})["finite"].any()


def test_prefetch_is_in_order_and_stale_by_at_most_its_depth(cluster):
    """Each step adds 1 to the same row: what a lookup reads says how many pushes it has seen."""
    model = cluster.create_features(Feature("counted", SGD))
    for depth in (0, 1, 3):
        base = -model.lookup({"counted": [9]})["counted"][0, 0]
        numbers = []
        for number, batch in model.prefetch(
            range(20), lambda number: {"counted": [9]}, depth=depth
        ):
            seen = -batch["counted"][0, 0] - base
            assert number - depth <= seen <= number
            model.apply(batch, {"counted": np.ones((1, 2), np.float32)})
            numbers.append(number)
        assert numbers == list(range(20))


def test_gradients_of_begun_pushes_are_all_there_when_their_results_are(cluster):
    model = cluster.create_features(Feature("async", SGD))
    calls = []
    for _ in range(20):
        batch = model.lookup({"async": [1, 2, 1]})
        calls.append(model.begin_apply(batch, {"async": np.ones((3, 2), np.float32)}))
    with pytest.raises(errors.ShapeMismatch):
        model.begin_apply(batch, {"async": np.ones((2, 2), np.float32)})
    with pytest.raises(errors.DtypeMismatch, match="int64"):
        model.begin_apply(batch, {"async": np.ones((3, 2), np.int64)})
    for call in calls:
        call.result()
    assert model.lookup({"async": [1, 2]})["async"].tolist() == [[-40, -40], [-20, -20]]


def test_prefetch_raises_in_the_place_of_the_bad_batch_and_leaves_no_thread(cluster):
    model = cluster.create_features(Feature("bad", SGD, slot=3))
    good, bad = V2.pack(3, [1]), V2.pack(4, [1])
    stream = model.prefetch([good, bad, good], lambda ids: {"bad": ids}, depth=2)
    assert next(stream)[0] is good
    with pytest.raises(errors.WrongSlot):
        next(stream)
    half_read = model.prefetch([good] * 9, lambda ids: {"bad": ids}, depth=2)
    next(half_read)
    half_read.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("megalith-prefetch")
    ]
    with pytest.raises(errors.InvalidRequest, match="depth -1"):
        model.prefetch([], lambda ids: ids, depth=-1)
