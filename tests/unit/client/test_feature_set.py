"""Lookups and gradients of features, against rows that the test decides."""

import numpy as np
import pytest

from megalith.client import (
    V1,
    Columns,
    Feature,
    FeatureSet,
    FirstN,
    Layout,
    Mean,
    Ragged,
    Slice,
    Sqrtn,
    Sum,
)
from megalith.errors import (
    DtypeMismatch,
    DuplicateIds,
    InvalidRequest,
    InvalidSetting,
    ShapeMismatch,
    UnknownFeature,
    UnknownLayout,
    WrongSlot,
)
from support.rows import RecordedRows

ROW = (Slice("bias", 1), Slice("vec", 2))


@pytest.fixture
def rows():
    """The rows of a worked example, small enough for paper."""
    return RecordedRows(
        {
            11: [1, 10, 20],
            12: [2, 30, 40],
            21: [5, 100, 200],
            22: [7, 300, 400],
            31: [9, 9],
            32: [8, 8],
            33: [7, 7],
        }
    )


@pytest.fixture
def model(rows):
    return FeatureSet(
        rows,
        (
            Feature("f_a", ROW),
            Feature("f_b", ROW, combiner=Mean()),
            Feature("f_s", (Slice("seq", 2),), combiner=FirstN(2)),
        ),
        {
            "bias": Layout.add_n("f_a.bias", "f_b.bias"),
            "cat": Layout.concat(Columns("f_a", 1, 3), "f_b.vec"),
            "stk": Layout.stack("f_a.vec", "f_b.vec"),
            "non": Layout.none("f_a.vec", "f_b.vec"),
            "seq": Layout.none("f_s"),
        },
    )


BATCH = {"f_a": [[11, 12], [12]], "f_b": [[21, 22], []], "f_s": [[31, 32, 33], [33]]}


@pytest.mark.golden("FusedEmbeddingToLayoutTest.worked_example")
def test_every_kind_of_layout_of_a_worked_example(model):
    batch = model.lookup(BATCH)
    assert batch.size == 2
    assert batch["bias"].tolist() == [[9], [2]]
    assert batch["cat"].tolist() == [[40, 60, 200, 300], [30, 40, 0, 0]]
    assert batch["stk"].tolist() == [[[40, 60], [200, 300]], [[30, 40], [0, 0]]]
    assert [part.tolist() for part in batch.parts("non")] == [
        [[40, 60], [30, 40]],
        [[200, 300], [0, 0]],
    ]
    assert batch["seq"].tolist() == [[[9, 9], [8, 8]], [[7, 7], [0, 0]]]


@pytest.mark.golden("FusedEmbeddingToLayoutTest.worked_example")
def test_the_gradients_of_a_worked_example(model, rows):
    batch = model.lookup(BATCH)
    model.apply(batch, {"bias": np.ones((2, 1), np.float32), "seq": np.ones((2, 2, 2))})
    assert rows.pushed() == {
        11: [1, 0, 0],
        12: [2, 0, 0],
        21: [0.5, 0, 0],
        22: [0.5, 0, 0],
        31: [1, 1],
        32: [1, 1],
        33: [1, 1],
    }


def test_gradients_of_all_layouts_add_up(model, rows):
    batch = model.lookup(BATCH)
    two = np.full((2, 2), 2, np.float32)
    model.apply(
        batch, {"cat": np.tile(two, 2), "stk": np.stack([two, two], axis=1), "non": (two, 3 * two)}
    )
    assert rows.pushed() == {11: [0, 6, 6], 12: [0, 12, 12], 21: [0, 5, 5], 22: [0, 5, 5]}


def test_ids_that_no_gradient_reaches_are_not_pushed(model, rows):
    batch = model.lookup(BATCH)
    model.apply(batch, {"seq": np.ones((2, 2, 2), np.float32)})
    assert set(rows.pushes[-1]) == {"f_s"}
    merged = FeatureSet(
        rows,
        (Feature("a", ROW, table="t"), Feature("b", ROW, table="t")),
        {"a": Layout.concat("a"), "b": Layout.concat("b")},
    )
    batch = merged.lookup({"a": [11, 12], "b": [12, 21]})
    merged.apply(batch, {"b": np.ones((2, 3), np.float32)})
    assert rows.pushes[-1] == {"t": {12: [1, 1, 1], 21: [1, 1, 1]}}
    merged.apply(batch, {})
    assert rows.pushes[-1] == {}


def test_a_part_without_a_gradient_is_not_pushed(model, rows):
    batch = model.lookup(BATCH)
    model.apply(batch, {"non": (None, np.ones((2, 2), np.float32))})
    assert rows.pushed() == {21: [0, 0.5, 0.5], 22: [0, 0.5, 0.5]}
    model.apply(batch, {"non": (None, None)})
    assert rows.pushes[-1] == {}


def test_a_lookup_is_one_pull_of_distinct_ids_per_table(rows):
    features = (
        Feature("a", ROW, table="t"),
        Feature("b", ROW, table="t", combiner=FirstN(1)),
        Feature("c", ROW),
    )
    model = FeatureSet(rows, features)
    model.lookup({"a": [[11, 12, 11], []], "b": [[21, 99], [11]], "c": [11, 11]})
    assert rows.pulls == [{"t": [11, 12, 21], "c": [11]}]


def test_ids_beyond_the_first_n_are_neither_read_nor_trained(model, rows):
    batch = model.lookup({"f_s": [[31, 32, 33], []]})
    assert rows.pulls[-1] == {"f_s": [31, 32]}
    model.apply(batch, {"seq": np.ones((2, 2, 2), np.float32)})
    assert rows.pushed() == {31: [1, 1], 32: [1, 1]}


def test_features_left_out_and_empty_lists_read_zeros(model, rows):
    batch = model.lookup({"f_a": [[], []]})
    assert rows.pulls[-1] == {}
    assert not any(array.any() for name in model.layouts for array in batch.parts(name))
    assert batch["stk"].shape == (2, 2, 2)
    model.apply(batch, {"cat": np.ones((2, 4), np.float32)})
    assert rows.pushes[-1] == {}


def test_a_shared_list_is_pooled_once_and_copied_to_every_example(model, rows):
    batch = model.lookup(
        {"f_a": Ragged.shared([11, 12]), "f_b": [[21], [], [22]], "f_s": Ragged.shared([31])}
    )
    assert batch["bias"].tolist() == [[8], [3], [10]]
    assert batch["cat"].tolist() == [[40, 60, 100, 200], [40, 60, 0, 0], [40, 60, 300, 400]]
    assert batch["seq"].tolist() == [[[9, 9], [0, 0]]] * 3
    gradient = np.array([[1], [2], [4]], np.float32)
    model.apply(batch, {"bias": gradient, "seq": np.ones((3, 2, 2), np.float32)})
    assert rows.pushed() == {11: [7, 0, 0], 12: [7, 0, 0], 21: [1, 0, 0], 22: [4, 0, 0], 31: [3, 3]}


def test_sequences_concatenate_and_stack_in_their_right_places(rows):
    """Monolith writes these to wrong positions."""
    row = (Slice("v", 2),)
    model = FeatureSet(
        rows,
        (Feature("s", row, combiner=FirstN(2)), Feature("t", row, combiner=FirstN(2))),
        {"cat": Layout.concat("s", "t"), "stk": Layout.stack("s", "t")},
    )
    batch = model.lookup({"s": [[31, 32]], "t": [[33]]})
    assert batch["cat"].tolist() == [[[9, 9, 7, 7], [8, 8, 0, 0]]]
    assert batch["stk"].tolist() == [[[[9, 9], [8, 8]], [[7, 7], [0, 0]]]]
    gradient = np.arange(8, dtype=np.float32)
    model.apply(batch, {"cat": gradient.reshape(1, 2, 4), "stk": gradient.reshape(1, 2, 2, 2)})
    assert rows.pushed() == {31: [0, 2], 32: [6, 8], 33: [6, 8]}


def test_without_layouts_there_is_an_array_per_feature(rows):
    model = FeatureSet(
        rows, (Feature("f_a", ROW), Feature("f_s", (Slice("seq", 2),), combiner=FirstN(2)))
    )
    batch = model.lookup({"f_a": [11, 12], "f_s": [[31], [32, 33]]})
    assert (batch["f_a"].shape, batch["f_s"].shape) == ((2, 3), (2, 2, 2))


def test_variables_and_update_time_travel_with_the_same_calls(model):
    batch = model.lookup({"f_a": [11]}, variables=["w"])
    assert list(batch.variables) == ["w"]
    others = model.apply(
        batch,
        {},
        variable_gradients={"w": np.ones(1)},
        add_to_variables={"n": np.array(1)},
        req_time_s=5,
        step=6,
    )
    assert (
        others["req_time_s"],
        others["step"],
        set(others["variable_gradients"]),
        set(others["add_to_variables"]),
    ) == (
        5,
        6,
        {"w"},
        {"n"},
    )


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ({"x": [1]}, UnknownFeature, "no feature 'x'; there are"),
        ({"f_a": [1.5]}, InvalidRequest, "feature f_a: ragged: values are float64"),
        (
            {"f_a": [1, 2], "f_b": [1]},
            ShapeMismatch,
            "different numbers of examples: {'f_a': 2, 'f_b': 1}",
        ),
        ({}, InvalidRequest, "names no feature"),
    ],
)
def test_a_bad_batch_is_refused_before_any_call(model, rows, ids, error, message):
    with pytest.raises(error, match=message):
        model.lookup(ids)
    assert rows.pulls == []


def test_an_id_of_another_slot_is_refused_before_any_call(rows):
    model = FeatureSet(rows, (Feature("f", ROW, slot=1),))
    with pytest.raises(WrongSlot, match="feature f: 1 ids are not of slot"):
        model.lookup({"f": [1 << 48, 2 << 48]})
    assert rows.pulls == []


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        ({"x": np.ones(1)}, UnknownLayout, "no layout 'x'"),
        (
            {"bias": np.ones((3, 1))},
            ShapeMismatch,
            r"layout bias: gradients are \['float64 \[3, 1\]'\]",
        ),
        ({"bias": np.ones((2, 1), np.int64)}, DtypeMismatch, "int64"),
        ({"non": np.ones((2, 2))}, ShapeMismatch, r"expected float32 of \[\[2, 2\], \[2, 2\]\]"),
        ({"non": (np.ones((2, 2)),)}, ShapeMismatch, "layout non"),
        (
            {"non": (None, np.ones((3, 2)))},
            ShapeMismatch,
            r"layout non: gradients are \['None', 'float64 \[3, 2\]'\]",
        ),
        ({"non": None}, DtypeMismatch, "layout non"),
    ],
)
def test_a_bad_gradient_is_refused_and_nothing_is_pushed(model, rows, gradients, error, message):
    batch = model.lookup(BATCH)
    with pytest.raises(error, match=message):
        model.apply(batch, {"cat": np.ones((2, 4)), **gradients})
    assert rows.pushes == []


def test_layouts_are_taken_by_name(model):
    batch = model.lookup(BATCH)
    with pytest.raises(UnknownLayout, match="no layout 'x'"):
        batch["x"]
    with pytest.raises(InvalidRequest, match="has 2 arrays"):
        batch["non"]


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        (Layout.concat("x.vec"), UnknownFeature, "no feature for part 'x.vec'"),
        (Layout.concat("a.x"), UnknownFeature, "feature a has no slice 'x'; it has"),
        (
            Layout.concat(Columns("a", 1, 4)),
            InvalidSetting,
            r"columns \[1, 4\) are not within the 3 of a",
        ),
        (Layout.stack("a.bias", "a.vec"), InvalidSetting, "equal width"),
        (Layout.add_n("a.bias", "a.vec"), InvalidSetting, "equal width"),
        (Layout.add_n("s"), InvalidSetting, "cannot be added"),
        (Layout.concat("a", "s"), InvalidSetting, r"lengths \[None, 2\]"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layout, error, message):
    features = (Feature("a", ROW), Feature("s", (Slice("v", 3),), combiner=FirstN(2)))
    with pytest.raises(error, match=message):
        FeatureSet(RecordedRows(), features, {"other": Layout.none("a", "s"), "l": layout})


def test_feature_sets_that_cannot_be_are_refused(rows):
    with pytest.raises(DuplicateIds, match=r"features \['a'\] are given more than once"):
        FeatureSet(rows, (Feature("a", ROW), Feature("a", ROW)))
    with pytest.raises(InvalidSetting, match=r"features \['b'\] are in no layout"):
        FeatureSet(rows, (Feature("a", ROW), Feature("b", ROW)), {"l": Layout.concat("a")})
    with pytest.raises(InvalidSetting, match="there are none"):
        FeatureSet(rows, ())
    with pytest.raises(InvalidSetting, match="no parts"):
        Layout.concat()
    assert rows.dims == {}


def random_model(rng, num_features):
    """Many features of mixed combiners, each in a layout of its own kind and most in a second
    one."""
    features, layouts = [], {}
    for number in range(num_features):
        combiner = (Sum(), Mean(), FirstN(int(rng.integers(1, 4))), Sqrtn())[rng.integers(4)]
        name = f"f{number}"
        features.append(Feature(name, ROW, combiner=combiner, table="t"))
        layouts[f"all{number}"] = (
            Layout.none(name) if number % 2 else Layout.concat(f"{name}.bias", f"{name}.vec")
        )
    sums = [feature.name for feature in features if not isinstance(feature.combiner, FirstN)]
    layouts |= {"cat": Layout.concat(*(f"{name}.vec" for name in sums)), "add": Layout.add_n(*sums)}
    return features, layouts


def naive_pooling(combiner, rows):
    """One example's rows, [m, 3], to what the model sees of it."""
    match combiner:
        case Sum():
            return rows.sum(axis=0)
        case Mean():
            return rows.sum(axis=0) / max(len(rows), 1)
        case FirstN(n):
            return np.concatenate([rows, np.zeros((n, 3))])[:n]
        case Sqrtn():
            return np.sqrt((rows**2).sum(axis=0))


@pytest.mark.golden(
    "FusedEmbeddingToLayoutTest.test_fused_embedding_to_layout",
    "FusedEmbeddingToLayoutTest.test_fused_embedding_to_layout_grad",
)
def test_200_random_features_equal_loops_and_finite_differences():
    """FusedEmbeddingToLayoutTest, against loops.

    The gradient by finite differences of a linear loss.
    """
    rng = np.random.default_rng(3)
    features, layouts = random_model(rng, 200)
    values = {key: rng.uniform(0.5, 1.5, 3).astype(np.float32).tolist() for key in range(50)}
    rows = RecordedRows(values)
    model = FeatureSet(rows, features, layouts)
    ids = {
        feature.name: [rng.integers(0, 50, rng.integers(0, 5)).tolist() for _ in range(4)]
        for feature in features
    }
    batch = model.lookup(ids)

    def naive(table):
        return {
            feature.name: np.stack(
                [
                    naive_pooling(feature.combiner, table[example].reshape(-1, 3))
                    for example in ids[feature.name]
                ]
            )
            for feature in features
        }

    table = np.array([values[key] for key in range(50)])
    expected = naive(table)
    for feature, number in zip(features, range(200), strict=True):
        np.testing.assert_allclose(batch[f"all{number}"], expected[feature.name], rtol=1e-4)
    sums = [feature.name for feature in features if not isinstance(feature.combiner, FirstN)]
    np.testing.assert_allclose(batch["add"], sum(expected[name] for name in sums), rtol=1e-4)
    np.testing.assert_allclose(
        batch["cat"], np.hstack([expected[name][:, 1:] for name in sums]), rtol=1e-4
    )

    model.apply(batch, {name: np.ones_like(batch[name]) for name in layouts})
    pushed = rows.pushed()
    for key in (0, 7, 49):
        for column in range(3):
            nudged = [table.copy(), table.copy()]
            nudged[0][key, column] += 1e-4
            nudged[1][key, column] -= 1e-4
            losses = []
            for changed in (naive(nudged[0]), naive(nudged[1])):
                loss = sum(array.sum() for array in changed.values())
                loss += sum(changed[name].sum() + changed[name][:, 1:].sum() for name in sums)
                losses.append(loss)
            assert pushed[key][column] == pytest.approx((losses[0] - losses[1]) / 2e-4, rel=1e-3)


@pytest.mark.golden("G13")
def test_ten_examples_with_shared_features_have_the_shapes_of_their_layouts():
    batch_size = 10
    row = (Slice("bias", 1), Slice("vec", 4), Slice("user_only", 3))
    users = [Feature(f"user{k}", row, slot=k, fid_layout=V1) for k in range(1, 4)]
    items = [Feature(f"item{k}", row, slot=k) for k in range(4, 6)]
    ffm = [Feature(f"ffm{k}", (Slice("user_only", 3),), slot=k) for k in range(6, 11)]
    history = Feature("history", (Slice("seq", 2),), slot=11, combiner=FirstN(3))

    main = [feature.name for feature in (*users, *items)]
    model = FeatureSet(
        RecordedRows(),
        [*users, *items, *ffm, history],
        {
            "bias": Layout.concat(*(f"{name}.bias" for name in main)),
            "vec": Layout.concat(*(f"{name}.vec" for name in main)),
            "user_only": Layout.stack(*(f"{f.name}.user_only" for f in (*users, *ffm))),
            "uffm": Layout.none(*(f"{f.name}.vec" for f in users)),
            "iffm": Layout.none(*(f"{f.name}.vec" for f in items)),
            "seq": Layout.none("history"),
        },
    )

    ids = {user.name: Ragged.shared(user.fids([42])) for user in users}
    for feature in (*items, *ffm, history):
        ids[feature.name] = feature.fids(np.arange(batch_size))

    assert ids["user3"].values.tolist() == [3 << 54 | 42]
    assert ids["item4"].tolist() == [4 << 48 | k for k in range(batch_size)]
    assert [len(ids[user.name]) for user in users] == [1, 1, 1]

    batch = model.lookup(ids)
    assert batch.size == batch_size
    assert batch["bias"].shape == (10, 5)
    assert batch["vec"].shape == (10, 20)
    assert batch["user_only"].shape == (10, 8, 3)
    assert [part.shape for part in batch.parts("uffm")] == [(10, 4)] * 3
    assert [part.shape for part in batch.parts("iffm")] == [(10, 4)] * 2
    assert [part.shape for part in batch.parts("seq")] == [(10, 3, 2)]
