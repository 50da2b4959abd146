"""Every public call with arguments that cannot be right: a typed error, and nothing happens."""

from types import SimpleNamespace

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import DtypeMismatch, InvalidRequest, MegalithError, ShapeMismatch

F = np.float32
ROWS = np.ones((1, 3), F)
UNEVEN = [[1], [1, 2]]

CALLS = {
    "pull list": lambda given: given.cluster.pull(["t"]),
    "pull str": lambda given: given.cluster.pull("t"),
    "pull None ids": lambda given: given.cluster.pull({"t": None}),
    "pull int key": lambda given: given.cluster.pull({5: [1]}),
    "pull ragged": lambda given: given.cluster.pull({"t": UNEVEN}),
    "pull float": lambda given: given.cluster.pull({"t": [1.5]}),
    "pull 2d": lambda given: given.cluster.pull({"t": [[1, 2]]}),
    "pull big": lambda given: given.cluster.pull({"t": [2**64]}),
    "pull vars str": lambda given: given.cluster.pull(variables="w"),
    "pull vars int": lambda given: given.cluster.pull(variables=[5]),
    "pull vars 5": lambda given: given.cluster.pull(variables=5),
    "pull unknown": lambda given: given.cluster.pull({"x": [1]}),
    "pull unknown empty": lambda given: given.cluster.pull({"x": []}),
    "pull unk var": lambda given: given.cluster.pull(variables=["x"]),
    "begin_pull": lambda given: given.cluster.begin_pull({"t": UNEVEN}),
    "begin_pull list": lambda given: given.cluster.begin_pull(["t"]),
    "push [1]": lambda given: given.cluster.push({"t": [1]}),
    "push 1": lambda given: given.cluster.push({"t": 1}),
    "push 3": lambda given: given.cluster.push({"t": ([1], ROWS, ROWS)}),
    "push None": lambda given: given.cluster.push({"t": (None, None)}),
    "push list": lambda given: given.cluster.push([("t", ([1], ROWS))]),
    "push width": lambda given: given.cluster.push({"t": ([1, 2, 2], np.zeros((3, 9), F))}),
    "push width rep": lambda given: given.cluster.push({"t": ([1, 1], np.zeros((2, 2), F))}),
    "push count": lambda given: given.cluster.push({"t": ([1, 2], ROWS)}),
    "push ragged": lambda given: given.cluster.push({"t": ([1, 2], UNEVEN)}),
    "push int grads": lambda given: given.cluster.push({"t": ([1], [[1, 2, 3]])}),
    "push str": lambda given: given.cluster.push({"t": (["a"], ROWS)}),
    "push unknown": lambda given: given.cluster.push({"x": ([1], ROWS)}),
    "push lr": lambda given: given.cluster.push({"t": ([1], ROWS)}, learning_rates={"t": 0.1}),
    "push lr2": lambda given: given.cluster.push(
        {"t": ([1], ROWS)}, learning_rates={"t": (0.1, 0.2)}
    ),
    "push lr unknown": lambda given: given.cluster.push(
        {"t": ([1], ROWS)}, learning_rates={"x": (0.1,)}
    ),
    "push lr str": lambda given: given.cluster.push(
        {"t": ([1], ROWS)}, learning_rates={"t": ("a",)}
    ),
    "push lr nan": lambda given: given.cluster.push(
        {"t": ([1], ROWS)}, learning_rates={"t": (float("nan"),)}
    ),
    "push lr list": lambda given: given.cluster.push({"t": ([1], ROWS)}, learning_rates=[1]),
    "push time neg": lambda given: given.cluster.push({"t": ([1], ROWS)}, req_time_s=-1),
    "push time float": lambda given: given.cluster.push({"t": ([1], ROWS)}, req_time_s=1.5),
    "push time big": lambda given: given.cluster.push({"t": ([1], ROWS)}, req_time_s=2**70),
    "push time str": lambda given: given.cluster.push({"t": ([1], ROWS)}, req_time_s="now"),
    "push step neg": lambda given: given.cluster.push({"t": ([1], ROWS)}, step=-1),
    "push step str": lambda given: given.cluster.push({"t": ([1], ROWS)}, step="x"),
    "push step big": lambda given: given.cluster.push({"t": ([1], ROWS)}, step=2**70),
    "push vars list": lambda given: given.cluster.push(variable_gradients=[1]),
    "push var shape": lambda given: given.cluster.push(variable_gradients={"w": [1.0]}),
    "push var ragged": lambda given: given.cluster.push(variable_gradients={"w": UNEVEN}),
    "push var str": lambda given: given.cluster.push(variable_gradients={"w": "x"}),
    "push var none": lambda given: given.cluster.push(add_to_variables={"w": None}),
    "push var int key": lambda given: given.cluster.push(add_to_variables={5: 1.0}),
    "begin_push": lambda given: given.cluster.begin_push({"t": [1]}),
    "begin_push list": lambda given: given.cluster.begin_push([1]),
    "assign [1]": lambda given: given.cluster.assign_rows({"t": [1]}),
    "assign list": lambda given: given.cluster.assign_rows([1]),
    "assign width": lambda given: given.cluster.assign_rows({"t": ([1], np.zeros((1, 9), F))}),
    "assign ragged": lambda given: given.cluster.assign_rows({"t": (UNEVEN, ROWS)}),
    "assign time": lambda given: given.cluster.assign_rows({"t": ([1], ROWS)}, req_time_s="x"),
    "assign time neg": lambda given: given.cluster.assign_rows({"t": ([1], ROWS)}, req_time_s=-1),
    "assign_add 1": lambda given: given.cluster.add_to_rows({"t": 1}),
    "assign key": lambda given: given.cluster.assign_rows({5: ([1], ROWS)}),
    "assign none": lambda given: given.cluster.assign_rows(None),
    "reinit int": lambda given: given.cluster.reinitialize_rows(5, [1]),
    "reinit None": lambda given: given.cluster.reinitialize_rows("t", None),
    "reinit ragged": lambda given: given.cluster.reinitialize_rows("t", UNEVEN),
    "create str": lambda given: given.cluster.create_tables("t"),
    "create list": lambda given: given.cluster.create_tables(
        [mg.TableConfig("q", (mg.Segment(1),))]
    ),
    "create var": lambda given: given.cluster.create_variables("w"),
    "TableConfig": lambda given: mg.TableConfig("q", mg.Segment(1)),
    "TableConfig name": lambda given: mg.TableConfig(5, (mg.Segment(1),)),
    "TableConfig segs": lambda given: mg.TableConfig("q", (5,)),
    "Segment": lambda given: mg.Segment("x"),
    "Segment opt": lambda given: mg.Segment(1, optimizer="adam"),
    "VariableConfig": lambda given: mg.VariableConfig("v", "x"),
    "VariableConfig rag": lambda given: mg.VariableConfig("v", UNEVEN),
    "VariableConfig list": lambda given: mg.VariableConfig("v", [1.0]),
    "VariableConfig opt": lambda given: mg.VariableConfig("v", np.zeros(1, F), 5),
    "features str": lambda given: given.cluster.create_features("f"),
    "features list": lambda given: given.cluster.create_features(
        [mg.Feature("f2", (mg.Slice("a", 1),))]
    ),
    "features layouts": lambda given: given.cluster.create_features(
        mg.Feature("f3", (mg.Slice("a", 1),)), layouts=["f3"]
    ),
    "features layouts2": lambda given: given.cluster.create_features(
        mg.Feature("f3", (mg.Slice("a", 1),)), layouts={"x": "f3"}
    ),
    "Feature": lambda given: mg.Feature("f", "x"),
    "Feature slot": lambda given: mg.Feature("f", (mg.Slice("a", 1),), slot="x"),
    "Feature slice": lambda given: mg.Feature("f", mg.Slice("a", 1)),
    "Feature name": lambda given: mg.Feature(5, (mg.Slice("a", 1),)),
    "Slice": lambda given: mg.Slice("a", "x"),
    "Slice name": lambda given: mg.Slice(5, 1),
    "lookup list": lambda given: given.features.lookup([1]),
    "lookup unknown": lambda given: given.features.lookup({"x": [1]}),
    "lookup none": lambda given: given.features.lookup({"f": None}),
    "lookup float": lambda given: given.features.lookup({"f": [1.5]}),
    "lookup str": lambda given: given.features.lookup({"f": ["a"]}),
    "lookup rag mix": lambda given: given.features.lookup({"f": [[1], 2]}),
    "lookup 3d": lambda given: given.features.lookup({"f": np.zeros((1, 1, 1), int)}),
    "lookup nested": lambda given: given.features.lookup({"f": [[[1]], [[2, 3]]]}),
    "lookup rag": lambda given: given.features.lookup({"f": [[1, "a"], [2]]}),
    "lookup scalar": lambda given: given.features.lookup({"f": 5}),
    "lookup sizes": lambda given: given.features.lookup({"f": [1], "g": [1, 2]}),
    "lookup empty": lambda given: given.features.lookup({}),
    "apply unknown": lambda given: given.features.apply(given.batch, {"x": ROWS}),
    "apply shape": lambda given: given.features.apply(given.batch, {"f": ROWS}),
    "apply rag": lambda given: given.features.apply(given.batch, {"f": UNEVEN}),
    "apply none": lambda given: given.features.apply(given.batch, {"f": None}),
    "apply list": lambda given: given.features.apply(given.batch, [1]),
    "apply batch": lambda given: given.features.apply(5, {"f": ROWS}),
    "apply tuple": lambda given: given.features.apply(given.batch, {"f": (ROWS, ROWS)}),
    "begin_apply": lambda given: given.features.begin_apply(given.batch, {"f": UNEVEN}),
    "apply dtype": lambda given: given.features.apply(given.batch, {"f": np.zeros((2, 2), int)}),
    "apply time": lambda given: given.features.apply(
        given.batch, {"f": np.zeros((2, 2), F)}, req_time_s="x"
    ),
    "batch[x]": lambda given: given.batch["x"],
    "Ragged": lambda given: mg.Ragged(UNEVEN, [0]),
    "Ragged2": lambda given: mg.Ragged([1, 2], "x"),
    "Ragged3": lambda given: mg.Ragged([1, 2], [0, 3]),
    "Ragged4": lambda given: mg.Ragged([1], [[0, 1]]),
    "Ragged none": lambda given: mg.Ragged(None, None),
    "Ragged.of gen": lambda given: mg.Ragged.of(x for x in [1]),
    "Ragged.shared": lambda given: mg.Ragged.shared(UNEVEN),
    "concat": lambda given: mg.Ragged.concat([1]),
    "Ragged big": lambda given: mg.Ragged([2**64], [0, 1]),
    "Ids": lambda given: mg.Ids(UNEVEN),
    "Ids none": lambda given: mg.Ids(None),
    "prefetch": lambda given: list(given.features.prefetch([1], lambda x: x)),
    "prefetch 5": lambda given: given.features.prefetch(5, lambda x: x),
    "prefetch None": lambda given: given.features.prefetch(None, lambda x: x, depth=0),
    "prefetch scalar": lambda given: given.features.prefetch(np.array(5), lambda x: x),
    "prefetch no function": lambda given: given.features.prefetch([1], {"f": [1]}),
    "prefetch depth": lambda given: given.features.prefetch([1], lambda x: x, depth="x"),
    "cache str": lambda given: mg.VariableCache(given.cluster, "w"),
    "cache lag": lambda given: mg.VariableCache(given.cluster, ["w"], max_lag_steps="x"),
    "connect both": lambda given: mg.connect("a:1", model_dir="x"),
    "connect none": lambda given: mg.connect(),
    "connect inflight": lambda given: mg.connect("a:1", max_inflight=0),
    "connect dtype": lambda given: mg.connect("a:1", row_dtype="int8"),
    "connect 5": lambda given: mg.connect(5),
    "connect timeout": lambda given: mg.connect("127.0.0.1:1", timeout_s="x"),
    "connect inflight str": lambda given: mg.connect("a:1", max_inflight="x"),
    "fids str": lambda given: mg.Feature("f", (mg.Slice("a", 1),), slot=1).fids(["a"]),
    "fids rag": lambda given: mg.Feature("f", (mg.Slice("a", 1),), slot=1).fids(UNEVEN),
    "pack rag": lambda given: mg.V2.pack(1, UNEVEN),
}


@pytest.fixture(scope="module")
def given(servers):
    cluster = servers.connect()
    cluster.create_tables(mg.TableConfig("t", (mg.Segment(3),)))
    cluster.create_variables(mg.VariableConfig("w", np.zeros((2, 2), F), mg.Sgd(0.1)))
    slices = (mg.Slice("a", 2),)
    features = cluster.create_features(
        mg.Feature("f", slices, slot=1), mg.Feature("g", slices, slot=2)
    )
    batch = features.lookup({"f": mg.V2.pack(1, [1, 2]), "g": mg.V2.pack(2, [1, 2])})
    return SimpleNamespace(cluster=cluster, features=features, batch=batch)


@pytest.mark.parametrize("call", CALLS)
def test_a_malformed_argument_is_a_typed_error_and_changes_nothing(given, call):
    with pytest.raises(MegalithError):
        CALLS[call](given)
    assert sum(table.rows for table in given.cluster.table_stats().values()) == 0
    assert not given.cluster.pull(variables=["w"]).variables["w"].any()


def test_a_push_without_gradients_says_what_is_expected(given):
    with pytest.raises(
        InvalidRequest,
        match=r"table t: gradients are: list \[1\], expected a pair \(ids, gradients",
    ):
        given.cluster.push({"t": [1]})


def test_a_wrong_width_is_told_in_the_caller_s_numbers(given):
    ids = np.arange(512) % 84
    with pytest.raises(
        ShapeMismatch, match=r"table t: gradients are \[512, 9\], expected \[512, 3\]"
    ):
        given.cluster.push({"t": (ids, np.zeros((512, 9), F))})
    with pytest.raises(ShapeMismatch, match=r"table t: values are \[512, 9\], expected \[512, 3\]"):
        given.cluster.assign_rows({"t": (ids, np.zeros((512, 9), F))})


def test_a_wrong_dtype_is_not_told_as_a_wrong_shape(given):
    wrong = np.ones((1, 3), np.int64)
    with pytest.raises(
        DtypeMismatch, match=r"table t: gradients are int64 \[1, 3\], expected float32"
    ):
        given.cluster.push({"t": ([1], wrong)})
    for write in (given.cluster.assign_rows, given.cluster.add_to_rows):
        with pytest.raises(
            DtypeMismatch, match=r"table t: values are int64 \[1, 3\], expected float32"
        ):
            write({"t": ([1], wrong)})
    with pytest.raises(
        DtypeMismatch, match=r"table t: ids are float64 \[1\], expected a vector of int64"
    ):
        given.cluster.pull({"t": [1.5]})
    with pytest.raises(DtypeMismatch, match=r"ragged: values are float64"):
        mg.Ragged([1.5], [0, 1])


def test_prefetch_says_that_it_cannot_iterate_where_it_is_called(given):
    with pytest.raises(
        InvalidRequest, match="prefetch: batches are int 5, expected something to iterate over"
    ):
        given.features.prefetch(5, lambda batch: batch)
    with pytest.raises(InvalidRequest, match=r"prefetch: ids=.*is not a function"):
        given.features.prefetch([1], {"f": [1]})


def test_learning_rates_of_a_table_that_gets_no_gradients_are_not_dropped_in_silence(given):
    with pytest.raises(InvalidRequest, match="'x'"):
        given.cluster.push({"t": ([1], ROWS)}, learning_rates={"x": (0.1,)})
